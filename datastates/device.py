"""The seam to accelerators: copies to the host in the order of streams, without blocking it.

A device runs work in streams, each in order; an event marks a point of one, and lets another
stream, or the host, wait until it is reached. The core needs the few things below of it, and
knows nothing else: so whatever has streams and events can be used, and a fake that records them
proves the order of copies and updates without any hardware (`datastates.testing.FakeDevice`).

Order, which is all that makes a lazy copy right:

1. `mark` in the caller's thread, inside `save_async`: later copies see what it has queued so far.
2. `copy` from a thread of ours: queued on the device's own copy stream, behind that mark.
3. `hold` in the caller's thread, at the fence: what it queues from then on runs behind the copies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Bytes", "Device", "Event", "Source", "Transfer"]

Bytes = npt.NDArray[np.uint8]
"""Raw memory as a one-dimensional, contiguous array of bytes; the view owns nothing."""


class Source(Protocol):
    """Where the bytes of a leaf come from."""

    def read(self, start: int, out: Bytes) -> None:
        """Copy the logical bytes `[start, start + len(out))`, in C order, into `out`.

        Called from several threads at once, with ranges that do not overlap. `start` and the
        length are multiples of the item size.
        """


class Event(ABC):
    """A point in the work of a device."""

    @abstractmethod
    def wait(self) -> None:
        """Block this thread until the point is reached.

        Raises:
            RuntimeError: the device failed before.
        """


@dataclass(frozen=True, slots=True)
class Transfer:
    """One run of a leaf's bytes, and where they go."""

    source: Source
    """Of a leaf on this device."""
    start: int
    """First byte of the leaf, in C order."""
    offset: int
    """First byte in the memory that takes them."""
    nbytes: int


class Device(ABC):
    """An accelerator's copies. Methods may be called from any thread unless they say otherwise."""

    @abstractmethod
    def mark(self) -> Event:
        """Return the point that the calling thread's work on the device has been queued up to."""

    @abstractmethod
    def copy(self, transfers: Sequence[Transfer], out: Bytes, after: Event) -> Event:
        """Queue copies into host memory, behind `after`; return the point at which they are there.

        Many small transfers are one copy over the link; bytes of `out` between them are undefined
        afterwards. Neither `out` nor a source may go before that point.
        """

    @abstractmethod
    def hold(self, event: Event) -> None:
        """Let what the calling thread queues from now on run behind `event`; does not block it."""

    @abstractmethod
    def pin(self, memory: Bytes) -> None:
        """Register host memory for fast copies; page-aligned. What cannot be is copied slower."""

    @abstractmethod
    def unpin(self, memory: Bytes) -> None:
        """Take back `pin`, of exactly that memory; called once no copy is under way."""
