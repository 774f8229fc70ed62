"""The steps of a run in a tier: which there are, which is best, and what is removed.

Nothing is remembered that the tier could not tell: `latest` is computed from the commit records,
so a copied directory, a second process and a restart all see the same. Records never change once
they are written, so they are read once.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Collection, Iterable

from .errors import DatastatesError, StepNotFoundError
from .retention import Candidate, Mode, Retention, rank_best
from .tier import Entry, Record, Tier

__all__ = ["Catalog"]

log = logging.getLogger("datastates")


class Catalog:
    """Lists, ranks and prunes the steps of one tier."""

    def __init__(self, tier: Tier, retention: Retention) -> None:
        self._tier, self._retention = tier, retention
        self._lock = threading.Lock()
        self._records: dict[Entry, Record] = {}
        self._damaged: set[Entry] = set()

    def entries(self) -> dict[int, Entry]:
        """Return the valid entry of each committed step, ascending by step."""
        return {entry.step: entry for entry in sorted(self._tier.entries())}

    def entry(self, step: int) -> Entry:
        """Return the valid entry of `step`.

        Raises:
            StepNotFoundError: it is not committed; the message lists what is.
        """
        entries = self.entries()
        if step not in entries:
            known = ", ".join(map(str, list(entries)[-5:])) or "none"
            raise StepNotFoundError(
                f"step {step} is not in {self._tier!r}; the newest are: {known}", step=step
            )
        return entries[step]

    def record(self, entry: Entry) -> Record:
        """Return the commit record of a step; read once, since it never changes."""
        with self._lock:
            known = self._records.get(entry)
        if known is None:
            known = self._tier.info(entry)
            with self._lock:
                self._records[entry] = known
        return known

    def best(self, metric: str, mode: Mode) -> int | None:
        """Return the step with the best metric; the newest, with a warning, where none has one."""
        entries = self.entries()
        ranked = rank_best(self._candidates(entries), metric, mode)
        if ranked:
            return ranked[0]
        if entries:
            warnings.warn(
                f"no step has a finite {metric!r}: taking the newest, {max(entries)}",
                RuntimeWarning,
                stacklevel=3,
            )
        return max(entries, default=None)

    def mark_damaged(self, entry: Entry) -> None:
        """Remember that a step could not be read: it keeps no older one from being kept."""
        with self._lock:
            self._damaged.add(entry)

    def _candidates(self, entries: dict[int, Entry]) -> list[Candidate]:
        found = []
        for entry in entries.values():
            try:
                found.append(Candidate(entry.step, self.record(entry).metrics))
            except StepNotFoundError:
                continue  # removed by someone else meanwhile
            except DatastatesError as error:
                log.warning("%s: %s", self._tier.where(entry), error)
        return found

    def expired(self, spared: Collection[int] = ()) -> list[Entry]:
        """Return what retention would remove now: expired steps, and older saves of a step."""
        everything = sorted(self._tier.entries())
        valid = {entry.step: entry for entry in everything}
        with self._lock:
            damaged = {entry.step for entry in self._damaged if valid.get(entry.step) == entry}
        sound = {step: entry for step, entry in valid.items() if step not in damaged}
        spared = {*spared, *damaged} if not sound else set(spared)
        ranked = self._retention.keep_best is not None  # else no record need be read
        candidates = self._candidates(sound) if ranked else [Candidate(s, {}) for s in sound]
        steps = self._retention.expired(candidates, spared)
        return [e for e in everything if valid[e.step] != e] + [valid[step] for step in steps]

    def delete(self, step: int) -> None:
        """Remove a step, with all that was ever saved under its number.

        Raises:
            StepNotFoundError: it is not committed.
            StorageError: it could not be removed.
        """
        last = self.entry(step)
        entries = [e for e in sorted(self._tier.entries()) if e.step == step and e <= last]
        for entry in entries:  # the valid one last, so that no older save reappears
            self._tier.delete(entry)
        self._forget(entries)

    def sweep(self) -> None:
        """Remove what dead savers left half-written; what cannot be removed is logged."""
        try:
            for name in self._tier.sweep():
                log.info("removed the half-written %s", name)
        except DatastatesError as error:
            log.warning("cannot sweep: %s", error)

    def _forget(self, entries: Iterable[Entry]) -> None:
        with self._lock:
            for entry in entries:
                self._records.pop(entry, None)
                self._damaged.discard(entry)

    def committed(self, entry: Entry, spared: Collection[int]) -> None:
        """Prune after a commit."""
        self._forget([entry])  # an earlier save of this name may have been removed since
        self.prune(spared)

    def prune(self, spared: Collection[int] = ()) -> list[Entry]:
        """Remove what retention does not keep, and what dead savers left; return the steps removed.

        Never raises: what cannot be removed is logged and tried again at the next commit.

        Args:
            spared: steps that stay whatever the rules say.
        """
        removed = []
        self.sweep()
        try:
            expired = self.expired(spared)
        except DatastatesError as error:
            log.warning("cannot tell which steps to remove: %s", error)
            return []
        for entry in expired:
            try:
                self._tier.delete(entry)
                removed.append(entry)
            except DatastatesError as error:
                log.warning("cannot remove step %d now: %s", entry.step, error)
        self._forget(removed)
        return removed
