"""The arena: the staging memory of a checkpointer, allocated once and used again.

Pieces are handed out first come, first served, so a large request is never starved by small
ones; and since no request is larger than the arena, it is always granted once what is in use has
drained. The lock guards the list of free ranges and nothing else.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from time import monotonic

from .errors import SaveTimeoutError, UsageError
from .grid import PAGE, align
from .memory import allocate, populate
from .provider import Bytes

__all__ = ["MIN_ARENA_NBYTES", "Arena", "ArenaStatistics", "Region"]

MIN_ARENA_NBYTES = 8 << 20
"""Smallest budget that is accepted, in bytes."""


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of the arena, owned by whoever acquired it until it is released."""

    start: int
    data: Bytes
    """The memory; its content is whatever was there before."""


@dataclass(frozen=True, slots=True)
class ArenaStatistics:
    """What the arena is used for at this moment."""

    budget_nbytes: int
    """The most it may ever hold."""
    nbytes: int
    """What it holds now; this much memory is taken from the system."""
    used_nbytes: int
    """What is lent out."""


class Arena:
    """Lends page-aligned pieces of one block of memory.

    Life: `reserve` before each save, then `acquire` and `release` from any thread, `close` once.
    """

    def __init__(self, budget: int) -> None:
        if budget < MIN_ARENA_NBYTES:
            raise UsageError(
                f"an arena of {budget} bytes is too small; give at least {MIN_ARENA_NBYTES}"
            )
        self._budget = budget // PAGE * PAGE
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()
        self._memory: Bytes = allocate(0)
        self._free: list[tuple[int, int]] = []
        self._used = 0
        self._wanted = 0

    def __repr__(self) -> str:
        s = self.statistics()
        return f"<Arena {s.used_nbytes} of {s.nbytes} bytes used, budget {s.budget_nbytes}>"

    @property
    def budget(self) -> int:
        """The most memory that the arena may take, in bytes."""
        return self._budget

    def statistics(self) -> ArenaStatistics:
        """Return a snapshot of the use."""
        with self._changed:
            return ArenaStatistics(self._budget, len(self._memory), self._used)

    def reserve(self, nbytes: int) -> None:
        """Grow to `nbytes`, within the budget; blocks to populate the memory.

        While pieces are lent out it stays as it is: the next one is then lent when all are back
        and it has grown, since a small arena would hold the caller back for the whole save.

        Raises:
            OSError: there is no memory; the arena is empty then, and may be reserved again.
        """
        with self._changed:
            self._wanted = min(self._budget, max(align(nbytes), MIN_ARENA_NBYTES))
            if not self._queue:
                self._grow()

    def _grow(self) -> bool:
        """Take the memory that was asked for, if nothing is lent out; tell whether it is there."""
        if self._wanted <= len(self._memory):
            return True
        if self._used:
            return False
        wanted, self._wanted = self._wanted, 0  # where there is none, the next save may need less
        self._memory = allocate(0)  # give the old block back before taking the new one
        self._free = []
        memory = allocate(wanted)
        populate(memory)
        self._memory = memory
        self._free = [(0, wanted)]
        return True

    def acquire(self, nbytes: int, timeout_s: float) -> Region:
        """Return `nbytes` of the arena; blocks until there is room.

        Raises:
            SaveTimeoutError: there was none for `timeout_s` seconds.
        """
        deadline = monotonic() + timeout_s
        ticket = object()
        size = align(nbytes)
        with self._changed:
            self._queue.append(ticket)
            try:
                while self._queue[0] is not ticket or (start := self._take(size)) is None:
                    if not self._changed.wait(max(0.0, deadline - monotonic())):
                        raise SaveTimeoutError(
                            f"waited {timeout_s:g} s for {nbytes} bytes of the arena: the tiers "
                            f"do not drain it ({self._used} bytes in use)"
                        )
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()
            self._used += size
        return Region(start, self._memory[start : start + nbytes])

    def _take(self, size: int) -> int | None:
        if not self._grow():
            return None
        for i, (start, length) in enumerate(self._free):
            if length >= size:
                rest = [(start + size, length - size)] if length > size else []
                self._free[i : i + 1] = rest
                return start
        return None

    def release(self, region: Region) -> None:
        """Take a piece back; its data must not be touched any more."""
        size = align(len(region.data))
        with self._changed:
            self._used -= size
            ranges = sorted([*self._free, (region.start, size)])
            merged: list[tuple[int, int]] = []
            for start, length in ranges:
                if merged and sum(merged[-1]) == start:
                    merged[-1] = (merged[-1][0], merged[-1][1] + length)
                else:
                    merged.append((start, length))
            self._free = merged
            self._changed.notify_all()

    def close(self) -> None:
        """Give the memory back to the system, as soon as nothing holds a piece of it."""
        with self._changed:
            self._memory = allocate(0)
            self._free = []
