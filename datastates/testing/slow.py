"""A tier that takes its time: so long per call, and so many bytes a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from datastates.provider import Bytes
from datastates.tier import Tier

from .wrapper import WrapperTier

__all__ = ["SlowTier"]

T = TypeVar("T")


class SlowTier(WrapperTier):
    """Adds latency to calls, and a bandwidth that all transfers share.

    Args:
        inner: the tier that does the work.
        latency_s: seconds before each call, by method; calls wait beside each other.
        bytes_per_s: of all writes together, and of all reads together.
        sleep: what passes the time; give one of your own where a test must not wait.
    """

    def __init__(
        self,
        inner: Tier,
        *,
        latency_s: Mapping[str, float] | None = None,
        bytes_per_s: float | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self._latency_s, self._bytes_per_s = dict(latency_s or {}), bytes_per_s
        self._sleep = sleep
        self._pipes = {"write": threading.Lock(), "read": threading.Lock()}

    def around(self, method: str, call: Callable[[], T]) -> T:
        """Wait for the latency, then call."""
        latency_s = self._latency_s.get(method, 0.0)
        if latency_s:
            self._sleep(latency_s)
        return call()

    def transfer(self, method: str, data: Bytes, call: Callable[[Bytes], None]) -> None:
        """Wait until the bytes have passed, one transfer after the other, then call."""
        if self._bytes_per_s is not None:
            with self._pipes[method]:
                self._sleep(len(data) / self._bytes_per_s)
        super().transfer(method, data, call)
