"""`datastates list`: every step, complete or not, and why not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import PurePath

import click
from rich.text import Text

from datastates.errors import CorruptError, StepNotFoundError
from datastates.tier import Entry, Record

from .command import DAMAGED, NotFoundError, json_option, location_argument
from .output import (
    emit,
    emit_json,
    human,
    metrics_text,
    plural,
    printable,
    shown_path,
    table,
    time_text,
)
from .places import Place, open_place

__all__ = ["Row", "list_steps", "rows_of", "state_text"]

_STYLES = {
    "complete": "green",
    "replaced": "dim",
    "damaged": "bold red",
    "being written": "cyan",
    "incomplete": "yellow",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One step as it is listed."""

    entry: Entry
    state: str
    """A key of `_STYLES`."""
    reason: str | None
    """Why it is not simply complete."""
    record: Record | None
    path: str


def rows_of(place: Place) -> list[Row]:
    """Return a row for each step, saved again or half-written ones included, ascending."""
    return sorted(_rows(place), key=lambda row: row.entry)


def _rows(place: Place) -> Iterator[Row]:
    for found in place.tier.incomplete():
        state = "being written" if found.alive else "incomplete"
        yield Row(found.entry, state, found.reason, None, place.tier.where(found.entry))
    entries = place.tier.entries()
    newest = {entry.step: entry for entry in sorted(entries)}
    for entry in entries:
        path, record, state, reason = place.tier.where(entry), None, "complete", None
        if newest[entry.step] != entry:
            state, reason = "replaced", "the step was saved again"
        try:
            record = place.catalog.record(entry)
        except StepNotFoundError:
            continue  # removed meanwhile
        except CorruptError as error:
            state, reason = "damaged", str(error)
        yield Row(entry, state, reason, record, path)


def state_text(row: Row) -> Text:
    """Return the state of a step in its colour."""
    return Text(row.state, _STYLES[row.state])


@click.command("list")
@location_argument
@json_option
def list_steps(location: str, to_json: bool) -> None:
    """List all steps, and whether each is complete.

    A step that is not complete is never restored. It is either being written now, or a saver that
    died has left it half-written; "datastates prune" removes the latter.
    """
    place = open_place(location)
    rows = rows_of(place)
    if to_json:
        emit_json({"location": location, "steps": [_as_json(row) for row in rows]})
    elif rows:
        _show(rows, place.tier.location)
    if not rows:
        raise NotFoundError(f"there is no checkpoint in {location}")
    if any(row.state == "damaged" for row in rows):
        click.get_current_context().exit(DAMAGED)


def _show(rows: list[Row], location: str) -> None:
    columns = ("step", "size", "created (UTC)", "state", "metrics", "path")
    found = table(*columns, right=("step", "size"))
    for row in rows:
        r = row.record
        found.add_row(
            str(row.entry.step),
            human(r.nbytes) if r else "",
            time_text(r.created) if r else "",
            state_text(row),
            metrics_text(r.metrics) if r else "",
            Text(printable(PurePath(row.path).name), "dim"),
        )
    complete = [row.record for row in rows if row.state == "complete" and row.record]
    size = human(sum(r.nbytes for r in complete))
    total = f"{plural(len(complete), 'step')}, {size} in {shown_path(location)}"
    notes = [f"step {row.entry.step}: {printable(row.reason)}" for row in rows if row.reason]
    emit(found, *notes, Text(total, "dim"))


def _as_json(row: Row) -> dict[str, object]:
    fields = asdict(row.record) if row.record else {}
    fields |= {"step": row.entry.step, "generation": row.entry.generation}
    return fields | {"state": row.state, "reason": row.reason, "path": row.path}
