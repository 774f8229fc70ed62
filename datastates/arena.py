"""The arena: the staging memory of a checkpointer, taken as it is needed and used again.

Address space for the whole budget is set aside at once, which costs nothing; memory is taken from
the system from its start on, in steps, where no free piece fits. So it never holds more than was
in use at one time, a piece is ready to be written when it is lent, and what is populated is being
filled while the next step is populated.

Pieces are handed out first come, first served, so a large request is never starved by small
ones; and since no request is larger than the arena, it is always granted once what is in use has
drained. The lock guards the list of free ranges and nothing else; whoever is first in the queue
populates memory, outside of it.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from time import monotonic

from .device import Device
from .errors import SaveTimeoutError, UsageError
from .grid import PAGE, align
from .memory import HUGE, allocate, populate
from .provider import Bytes

__all__ = ["MIN_ARENA_NBYTES", "Arena", "ArenaStatistics", "Region"]

MIN_ARENA_NBYTES = 8 << 20
"""Smallest budget that is accepted, in bytes."""

_STEP_NBYTES = 64 << 20
"""Most memory taken at once: what is copied meanwhile should keep the copiers busy."""


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

    Life: `acquire` and `release` from any thread, `close` once.
    """

    def __init__(self, budget: int) -> None:
        if type(budget) is not int or budget < MIN_ARENA_NBYTES:
            raise UsageError(
                f"arena_nbytes must be a whole number from {MIN_ARENA_NBYTES}, not {budget!r}"
            )
        self._budget = self._limit = budget // PAGE * PAGE
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()
        self._memory: Bytes | None = None
        self._nbytes = 0
        self._free: list[tuple[int, int]] = []
        self._used = 0
        self._devices: dict[type[Device], Device] = {}
        self._pieces: list[Bytes] = []

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
            return ArenaStatistics(self._budget, self._nbytes, self._used)

    def limit(self, nbytes: int) -> None:
        """Hold no more than `nbytes`, within the budget; what is held already stays."""
        with self._changed:
            self._limit = min(self._budget, max(align(nbytes), MIN_ARENA_NBYTES, self._nbytes))
            self._changed.notify_all()

    def room_nbytes(self) -> int:
        """Return how much could be lent now, were it asked for in small pieces."""
        with self._changed:
            return self._limit - self._used

    def pin_for(self, device: Device) -> None:
        """Register the memory, what is there and what comes, for the copies of such devices.

        Blocks for it; not beside `acquire`.
        """
        if type(device) not in self._devices:
            self._devices[type(device)] = device
            for piece in self._pieces:
                device.pin(piece)

    def acquire(self, nbytes: int, timeout_s: float) -> Region:
        """Return `nbytes` of the arena; blocks until there is room, and to populate memory.

        Raises:
            SaveTimeoutError: there was none for `timeout_s` seconds.
            OSError: the system has no memory; what is there already can still be lent.
        """
        deadline = monotonic() + timeout_s
        ticket = object()
        size = align(nbytes)
        with self._changed:
            self._queue.append(ticket)
        try:
            while (region := self._take(ticket, size, nbytes, deadline)) is None:
                self._grow(size)
            return region
        except _LateError:
            raise SaveTimeoutError(
                f"waited {timeout_s:g} s for {nbytes} bytes of the arena: the tiers do not "
                f"drain it ({self.statistics().used_nbytes} bytes in use)"
            ) from None
        finally:
            with self._changed:
                self._queue.remove(ticket)
                self._changed.notify_all()

    def _take(self, ticket: object, size: int, nbytes: int, deadline: float) -> Region | None:
        """Wait for a piece in turn; None where it is our turn to take more from the system."""
        with self._changed:
            while True:
                if self._queue[0] is ticket:
                    if (start := self._cut(size)) is not None:
                        self._used += size
                        return Region(start, self._block()[start : start + nbytes])
                    if self._nbytes < self._limit:
                        return None
                if not self._changed.wait(max(0.0, deadline - monotonic())):
                    raise _LateError

    def _block(self) -> Bytes:
        if self._memory is None:
            self._memory = allocate(self._budget)
        return self._memory

    def _cut(self, size: int) -> int | None:
        for i, (start, length) in enumerate(self._free):
            if length >= size:
                rest = [(start + size, length - size)] if length > size else []
                self._free[i : i + 1] = rest
                return start
        return None if size else 0

    def prepare(self, nbytes: int) -> None:
        """Take memory up to `nbytes`, so that nobody has to wait for it later; blocks for it."""
        while self._grow(0, nbytes):
            pass

    def _grow(self, size: int, upto: int | None = None) -> bool:
        """Take more memory: as much again as there is, within bounds; tell whether there was any.

        Several threads at once: each populates what it has claimed.
        """
        with self._changed:
            start = self._nbytes
            more = max(align(size), HUGE, min(start, _STEP_NBYTES))
            most = self._limit if upto is None else min(self._limit, align(upto))
            stop = max(start, min(most, start + more))
            if stop == start:
                return False
            piece = self._block()[start:stop]
            self._nbytes = stop
        try:
            populate(piece)
            for device in self._devices.values():
                device.pin(piece)
            self._pieces.append(piece)
        finally:
            with self._changed:
                self._put(start, stop - start)
                self._changed.notify_all()
        return True

    def _put(self, start: int, size: int) -> None:
        merged: list[tuple[int, int]] = []
        for at, length in sorted([*self._free, (start, size)]):
            if merged and sum(merged[-1]) == at:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((at, length))
        self._free = merged

    def release(self, region: Region) -> None:
        """Take a piece back; its data must not be touched any more."""
        size = align(len(region.data))
        with self._changed:
            self._used -= size
            if size:
                self._put(region.start, size)
            self._changed.notify_all()

    def close(self) -> None:
        """Give the memory back to the system, as soon as nothing holds a piece of it."""
        for device in self._devices.values():
            for piece in self._pieces:
                device.unpin(piece)
        with self._changed:
            self._memory = None
            self._pieces = []
            self._devices = {}
            self._nbytes = self._limit = 0
            self._free = []


class _LateError(Exception):
    """The deadline has passed."""
