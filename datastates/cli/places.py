"""What a user means by LOCATION and STEP."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from datastates.catalog import Catalog
from datastates.errors import DatastatesError, StepNotFoundError, StorageError, UsageError
from datastates.locations import open_tier
from datastates.retention import Candidate, Mode, Retention, rank_best
from datastates.tier import Entry, Tier

from .output import note

__all__ = ["Place", "find_entry", "open_place"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where steps lie."""

    tier: Tier
    catalog: Catalog
    entry: Entry | None = None
    """The one step that LOCATION itself names, if it does."""


def open_place(location: str, retention: Retention | None = None) -> Place:
    """Return the place at `location`, which is that of a run or of one step in it.

    Raises:
        UsageError: it can be neither.
        StorageError: it cannot be listed.
    """
    tier, rules = open_tier(location), retention or Retention()
    if not tier.entries() and "://" not in location:
        found = _as_step(Path(location).absolute())
        if found is not None:
            return Place(found[0], Catalog(found[0], rules), found[1])
    return Place(tier, Catalog(tier, rules))


def _as_step(path: Path) -> tuple[Tier, Entry] | None:
    try:
        parent = open_tier(path.parent)
        entries = Catalog(parent, Retention()).entries().values()
    except (StorageError, UsageError):
        return None
    return next(((parent, e) for e in entries if parent.where(e) == os.fspath(path)), None)


def find_entry(place: Place, step: str | None) -> Entry:
    """Return the step that is meant by `step`; the newest by None.

    Raises:
        UsageError: it is no way to name a step.
        StepNotFoundError: there is no such step.
    """
    if place.entry is not None:
        if step is not None:
            raise UsageError(
                f"{place.tier.where(place.entry)} is a step already: {step} is too much"
            )
        return place.entry
    if step is None or step == "latest":
        newest = place.tier.newest()
        if newest is None:
            raise StepNotFoundError(f"there is no checkpoint in {place.tier.location}")
        return newest
    if step.startswith("best:"):
        return place.catalog.entry(_best(place, *_metric(step.removeprefix("best:"))))
    number = step.removeprefix("step-")
    if not (number.isascii() and number.isdecimal() and len(number) < 20):
        raise UsageError(f'STEP is a number, "latest" or "best:METRIC[:max]", not {step!r}')
    return place.catalog.entry(int(number))


def _metric(text: str) -> tuple[str, Mode]:
    name, _, mode = text.rpartition(":")
    return (name, cast(Mode, mode)) if name and mode in ("min", "max") else (text, "min")


def _best(place: Place, metric: str, mode: Mode) -> int:
    candidates = []
    for step, entry in place.catalog.entries().items():
        try:
            candidates.append(Candidate(step, place.catalog.record(entry).metrics))
        except DatastatesError as error:
            note(f"step {step} is left out: {error}")
    ranked = rank_best(candidates, metric, mode)
    if not ranked:
        known = ", ".join(sorted({name for c in candidates for name in c.metrics})) or "none"
        raise StepNotFoundError(f"no step has a finite metric {metric!r}; there are: {known}")
    return ranked[0]
