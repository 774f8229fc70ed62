"""`datastates verify`: read every byte, and check it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from time import monotonic

import click
from rich.text import Text

from datastates.checkpointer import Checkpointer
from datastates.errors import CorruptError, StepNotFoundError
from datastates.tier import Damage, Entry

from .command import DAMAGED, NotFoundError, json_option, location_argument, step_argument
from .output import emit, emit_json, human, plural, printable, progress
from .places import Place, find_entry, open_place

__all__ = ["verify"]


@dataclass(frozen=True, slots=True)
class Verified:
    """What verifying one step found."""

    step: int
    path: str
    ok: bool
    nbytes: int
    """Bytes read and found right."""
    arrays: int
    seconds: float
    damaged: tuple[Damage, ...]


@click.command()
@location_argument
@step_argument
@click.option("--all", "every", is_flag=True, help="Verify all steps.")
@json_option
def verify(location: str, step: str | None, every: bool, to_json: bool) -> None:
    """Read every byte of a step and check it.

    Lists each damaged array with the reason, and exits with 1 where there is one.
    """
    if every and step is not None:
        raise click.UsageError("give STEP or --all, not both")
    place = open_place(location)
    entries = list(place.catalog.entries().values()) if every else [find_entry(place, step)]
    if not entries:
        raise NotFoundError(f"there is no checkpoint in {location}")
    found = []
    for verified in _verify(place, entries, every):
        found.append(verified)
        if not to_json:
            emit(*_lines(verified))
    ok = all(verified.ok for verified in found)
    if to_json:
        emit_json({"ok": ok, "steps": [asdict(verified) for verified in found]})
    if not ok:
        click.get_current_context().exit(DAMAGED)


def _verify(place: Place, entries: list[Entry], every: bool) -> Iterator[Verified]:
    for entry in entries:
        try:
            yield _verify_step(place, entry)
        except StepNotFoundError:
            if not every:
                raise  # otherwise it was removed meanwhile, which is no damage


def _verify_step(place: Place, entry: Entry) -> Verified:
    path, started = place.tier.where(entry), monotonic()
    try:
        with progress(f"step {entry.step}") as advance:
            report = Checkpointer(place.tier).verify(entry.step, progress=advance)
    except CorruptError as error:
        damage = Damage("manifest", str(error))
        return Verified(entry.step, path, False, 0, 0, monotonic() - started, (damage,))
    seconds, found = monotonic() - started, report.damaged
    return Verified(entry.step, path, report.ok, report.nbytes, report.arrays, seconds, found)


def _lines(found: Verified) -> Iterator[Text]:
    if found.ok:
        rate = f"{human(int(found.nbytes / max(found.seconds, 1e-9)))}/s"
        size = f"{plural(found.arrays, 'array')}, {human(found.nbytes)}"
        yield Text.assemble(f"step {found.step}: ", ("ok", "green"), f" ({size} at {rate})")
        return
    yield Text.assemble(f"step {found.step}: ", ("damaged", "bold red"), f"  {found.path}")
    for damage in found.damaged:
        yield Text(f"  {printable(str(damage))}")
