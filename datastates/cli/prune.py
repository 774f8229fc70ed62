"""`datastates prune`: remove the steps that no rule keeps, and what dead savers left."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import cast

import click
from rich.text import Text

from datastates.errors import CorruptError, StorageError, UsageError
from datastates.retention import Mode, Retention
from datastates.tier import Entry

from .command import NotFoundError, json_option, location_argument
from .list import Row, rows_of, state_text
from .output import emit, emit_json, human, metrics_text, note, plural, printable, table
from .places import Place, open_place

__all__ = ["prune"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What goes and what stays."""

    rows: tuple[Row, ...]
    """All steps."""
    going: frozenset[Entry]


@click.command()
@location_argument
@click.option("--keep-last", type=int, metavar="N", help="Keep the newest N steps.")
@click.option("--keep-every", type=int, metavar="N", help="Keep each multiple of N.")
@click.option("--keep-best", metavar="METRIC:min|max:N", help="Keep the N best by a metric.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def prune(
    location: str,
    keep_last: int | None,
    keep_every: int | None,
    keep_best: str | None,
    dry_run: bool,
    yes: bool,
    to_json: bool,
) -> None:
    """Remove all steps but those that a rule keeps.

    The newest step always stays. Half-written steps of savers that are gone are removed as well,
    and so are older saves of a step that was saved again; without a rule, nothing else is.
    """
    place = open_place(location, Retention(keep_last, keep_every, _best_rule(keep_best)))
    if place.entry is not None:
        raise UsageError(f"{location} is one step; prune takes the directory of a run")
    plan = _make_plan(place)
    if not plan.rows:
        raise NotFoundError(f"there is no checkpoint in {location}")
    if not to_json:
        _show(plan)
    agreed = bool(plan.going) and not dry_run and (yes or _agreed(plan))
    failed = _remove(place, plan) if agreed else {}
    if to_json:
        emit_json(_as_json(plan, failed, agreed))
    elif plan.going and not dry_run:
        count = len(plan.going) - len(failed) if agreed else 0
        note(f"removed {plural(count, 'step')}" if count else "nothing was removed")
    if failed:
        raise StorageError("\n".join(failed.values()))


def _best_rule(text: str | None) -> tuple[str, Mode, int] | None:
    if text is None:
        return None
    metric, mode, count = ["", "", *text.rsplit(":", 2)][-3:]
    if not metric or mode not in ("min", "max") or not count.isdecimal():
        raise UsageError(f"--keep-best is like loss:min:2, not {text!r}")
    return metric, cast(Mode, mode), int(count)


def _make_plan(place: Place) -> Plan:
    """Decide what goes: what retention says, and what dead savers left."""
    damaged = _find_damaged(place)
    rows = [
        replace(row, state="damaged", reason=damaged[row.entry]) if row.entry in damaged else row
        for row in rows_of(place)
    ]
    half_written = {row.entry for row in rows if row.state == "incomplete"}
    return Plan(tuple(rows), frozenset({*place.catalog.expired(), *half_written}))


def _find_damaged(place: Place) -> dict[Entry, str]:
    """Look for the newest step that can be read, so that it is not an older one's successor.

    Damaged steps newer than it count for no rule, and stay. Manifests alone are read: `verify`
    reads everything.
    """
    damaged: dict[Entry, str] = {}
    for entry in reversed(place.catalog.entries().values()):
        try:
            with place.tier.open(entry) as reader:
                reader.manifest()
            break
        except CorruptError as error:
            place.catalog.mark_damaged(entry)
            damaged[entry] = str(error)
    return damaged


def _show(plan: Plan) -> None:
    found = table("", "step", "size", "state", "metrics", "path", right=("step", "size"))
    for row in plan.rows:
        r = row.record
        goes = row.entry in plan.going
        found.add_row(
            Text("remove", "red") if goes else Text("keep", "green"),
            str(row.entry.step),
            human(r.nbytes) if r else "",
            state_text(row),
            metrics_text(r.metrics) if r else "",
            Text(printable(PurePath(row.path).name), "dim"),
        )
    notes = [f"step {row.entry.step}: {printable(row.reason)}" for row in plan.rows if row.reason]
    emit(found, *notes, Text(_summary(plan)))


def _summary(plan: Plan) -> str:
    going = [row for row in plan.rows if row.entry in plan.going]
    if not going:
        return "nothing to remove"
    size = human(sum(row.record.nbytes for row in going if row.record))
    return f"remove {plural(len(going), 'step')} ({size}), keep {len(plan.rows) - len(going)}"


def _agreed(plan: Plan) -> bool:
    try:
        return click.confirm(f"Remove {plural(len(plan.going), 'step')}?", err=True)
    except click.Abort:
        raise UsageError("there is nobody to ask: give --yes to remove, or --dry-run") from None


def _remove(place: Place, plan: Plan) -> dict[Entry, str]:
    """Remove what was decided, and nothing that came since; return what could not be, and why."""
    failed = {}
    half_written = {row.entry for row in plan.rows if row.state == "incomplete"}
    for entry in sorted(plan.going - half_written):
        try:
            place.tier.delete(entry)
        except StorageError as error:
            failed[entry] = str(error)
    if half_written:
        place.tier.sweep()
    for found in place.tier.incomplete():
        if found.entry in half_written:
            failed[found.entry] = f"cannot remove {place.tier.where(found.entry)}: {found.reason}"
    return failed


def _as_json(plan: Plan, failed: dict[Entry, str], agreed: bool) -> dict[str, object]:
    def some(goes: bool) -> list[dict[str, object]]:
        return [
            {"step": row.entry.step, "state": row.state, "reason": row.reason, "path": row.path}
            for row in plan.rows
            if (row.entry in plan.going) is goes
        ]

    errors = [{"step": entry.step, "reason": reason} for entry, reason in failed.items()]
    return {"done": agreed, "remove": some(True), "keep": some(False), "failed": errors}
