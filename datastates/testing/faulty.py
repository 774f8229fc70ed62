"""A tier that fails on request: at the nth call of a method, by an error or by wrong bytes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from datastates.memory import allocate
from datastates.provider import Bytes
from datastates.tier import Tier

from .wrapper import WrapperTier

__all__ = ["Fault", "FaultyTier", "cut", "flip"]

T = TypeVar("T")


def flip(data: Bytes) -> None:
    """Flip one bit in the middle, as a bad cable or disk does."""
    data[len(data) // 2] ^= 1


def cut(data: Bytes) -> None:
    """Lose the second half, as a short transfer that nobody noticed does."""
    data[len(data) // 2 :] = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, and when."""

    method: str
    """Whose calls are counted, see `WrapperTier`."""
    error: BaseException | None = None
    """Raised instead of the call."""
    spoil: Callable[[Bytes], None] | None = None
    """For `write` and `read`: done to the bytes on their way, `flip` or `cut` for instance."""
    nth: int = 1
    """The call that fails, counted from 1."""
    again: bool = False
    """True where every further nth call fails as well."""

    def strikes(self, count: int) -> bool:
        """Tell whether the call with this number fails."""
        return count == self.nth or (self.again and count % self.nth == 0)


class FaultyTier(WrapperTier):
    """Strikes with each of its faults; calls are counted over all writers and readers."""

    def __init__(self, inner: Tier, *faults: Fault) -> None:
        super().__init__(inner)
        self.faults = list(faults)
        """May be changed at any time; calls are counted from the start."""
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()

    def _due(self, method: str) -> list[Fault]:
        """Count a call; return what strikes it, and raise where that is an error."""
        with self._lock:
            self._calls[method] += 1
            count = self._calls[method]
        due = [fault for fault in self.faults if fault.method == method and fault.strikes(count)]
        for fault in due:
            if fault.error is not None:
                raise fault.error
        return due

    def around(self, method: str, call: Callable[[], T]) -> T:
        """Raise what is due instead of calling."""
        self._due(method)
        return call()

    def transfer(self, method: str, data: Bytes, call: Callable[[Bytes], None]) -> None:
        """Raise what is due, or spoil the bytes: of a write before, of a read after the call."""
        spoils = [fault.spoil for fault in self._due(method) if fault.spoil is not None]
        if method == "write" and spoils:
            copy = allocate(len(data))  # the caller's own bytes stay as they are
            copy[:] = data
            data = copy
            for spoil in spoils:
                spoil(data)
        call(data)
        for spoil in spoils if method == "read" else ():
            spoil(data)
