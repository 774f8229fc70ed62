"""What the tests of devices share: orders, arrays, and checkpointers that take them."""

import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import numpy as np

import datastates as ds
from datastates.testing import FakeArray, FakeDevice, FakeProvider
from datastates.tier import Tier
from datastates.tiers.memory import MemoryTier

__all__ = [
    "COMPUTE_FIRST",
    "COPIES_FIRST",
    "MIB",
    "ORDERS",
    "Make",
    "blocked",
    "checkpointer",
    "memory",
    "numbers",
    "on",
]

MIB = 1 << 20
COMPUTE_FIRST, COPIES_FIRST = (lambda n: 0), (lambda n: n - 1)
ORDERS = {"compute first": COMPUTE_FIRST, "copies first": COPIES_FIRST, "1": 1, "2": 2, "3": 3}

Make = Callable[..., ds.Checkpointer]


def memory() -> MemoryTier:
    return MemoryTier(str(uuid4()))


def checkpointer(tier: Tier | None = None, **options: Any) -> ds.Checkpointer:
    given = {"arena_nbytes": 32 * MIB, "providers": [FakeProvider()]} | options
    return ds.Checkpointer(tier or memory(), **given)


def numbers(nbytes: int, start: int = 0) -> np.ndarray[Any, Any]:
    return np.arange(start, start + nbytes // 4, dtype=np.int32)


def on(device: FakeDevice, nbytes: int = 3 * MIB, start: int = 0) -> FakeArray:
    return FakeArray(numbers(nbytes, start), device)


def blocked(device: FakeDevice) -> bool:
    """Tell whether this thread has ever waited for the device."""
    return threading.get_ident() in device.waits
