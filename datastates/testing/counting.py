"""A tier that counts what is asked of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from datastates.provider import Bytes
from datastates.tier import Tier

from .wrapper import WrapperTier

__all__ = ["CountingTier"]

T = TypeVar("T")


class CountingTier(WrapperTier):
    """Counts calls and bytes by method, when a call begins."""

    def __init__(self, inner: Tier) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()
        """How often each method was called."""
        self.nbytes: Counter[str] = Counter()
        """Bytes of `write` and `read`."""
        self._lock = threading.Lock()

    def around(self, method: str, call: Callable[[], T]) -> T:
        """Count, then call."""
        with self._lock:
            self.calls[method] += 1
        return call()

    def transfer(self, method: str, data: Bytes, call: Callable[[Bytes], None]) -> None:
        """Count the bytes as well."""
        with self._lock:
            self.nbytes[method] += len(data)
        super().transfer(method, data, call)

    def reset(self) -> None:
        """Count from zero again."""
        with self._lock:
            self.calls.clear()
            self.nbytes.clear()
