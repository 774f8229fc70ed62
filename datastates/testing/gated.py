"""A tier whose calls wait at a gate until the test opens it: slowness without a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from datastates.tier import Tier

from .wrapper import WrapperTier

__all__ = ["GatedTier"]

T = TypeVar("T")


class GatedTier(WrapperTier):
    """Calls of the named methods block while the gate is closed, which it is at first.

    A context manager that opens the gate at its end, so that no thread is left behind it.

    Args:
        inner: the tier that does the work.
        methods: which calls wait, see `WrapperTier`.
        free: how many of them pass before the gate counts.
    """

    def __init__(self, inner: Tier, *methods: str, free: int = 0) -> None:
        super().__init__(inner)
        self.gate = threading.Event()
        """Set: open."""
        self.reached = threading.Event()
        """Set by the first call that has to wait."""
        self._methods, self._free = frozenset(methods), free
        self._lock = threading.Lock()

    def around(self, method: str, call: Callable[[], T]) -> T:
        """Wait for the gate where the method is a gated one, then call."""
        if method in self._methods and not self._passes():
            self.reached.set()
            self.gate.wait()
        return call()

    def _passes(self) -> bool:
        with self._lock:
            self._free -= 1
            return self._free >= 0 or self.gate.is_set()

    def __enter__(self) -> GatedTier:
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
