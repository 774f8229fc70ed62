"""CUDA devices behind the core's seam: pinned memory, a copy stream each, and events.

Copies run on a stream of our own, behind an event of the stream that computes; at the fence the
computing stream waits for the last copy's event, and the host for nothing. Memory that a copy
reads is kept from being handed out again by the allocator until the copy has run
(`Tensor.record_stream`). See the CUDA programming guide on streams and events.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import Any

import torch

from datastates.device import Bytes, Device, Event, Transfer
from datastates.memory import address

log = logging.getLogger("datastates")

Tensor = torch.Tensor

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every device


class CudaEvent(Event):
    """A point of a CUDA stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.event.record(stream)

    def wait(self) -> None:
        """See `Event.wait`; gives the GIL away meanwhile."""
        self.event.synchronize()


class Pinned:
    """Where separately registered pieces of host memory begin: one copy may not span two."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._lock = threading.Lock()

    def add(self, start: int) -> None:
        """Note a piece."""
        with self._lock:
            insort(self._starts, start)

    def remove(self, start: int) -> None:
        """Forget a piece."""
        with self._lock:
            self._starts.remove(start)

    def split(self, start: int, nbytes: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of `[start, start + nbytes)`, relative to it, that lie in one piece."""
        with self._lock:
            inside = self._starts[bisect_right(self._starts, start) :]
        edges = [0, *(at - start for at in inside if at < start + nbytes), nbytes]
        yield from pairwise(edges)


class CudaDevice(Device):
    """One CUDA device. Sources have their elements, flat, in `flat`."""

    _pinned = Pinned()  # of all devices: what one of them pins is pinned for the others

    def __init__(self, index: int) -> None:
        self._index = index
        self._stream = torch.cuda.Stream(index)  # type: ignore[no-untyped-call]
        self._pageable: set[int] = set()

    def __repr__(self) -> str:
        return f"<CudaDevice {self._index}>"

    def mark(self) -> CudaEvent:
        """See `Device.mark`."""
        return CudaEvent(torch.cuda.current_stream(self._index))

    def copy(self, transfers: Sequence[Transfer], out: Bytes, after: Event) -> CudaEvent:
        """See `Device.copy`; several transfers are gathered on the device first."""
        assert isinstance(after, CudaEvent)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(after.event)
            parts = [self._part(transfer) for transfer in transfers]
            if len(transfers) == 1:
                first = transfers[0]
                self._to_host(parts[0], out[first.offset : first.offset + first.nbytes])
            else:
                self._to_host(self._gathered(transfers, parts, len(out)), out)
            return CudaEvent(self._stream)

    def _part(self, transfer: Transfer) -> Tensor:
        flat: Tensor = transfer.source.flat  # type: ignore[attr-defined]
        flat.record_stream(self._stream)
        return flat.view(torch.uint8)[transfer.start : transfer.start + transfer.nbytes]

    def _gathered(
        self, transfers: Sequence[Transfer], parts: Sequence[Tensor], nbytes: int
    ) -> Tensor:
        buffer = torch.empty(nbytes, dtype=torch.uint8, device=f"cuda:{self._index}")
        places = [buffer[t.offset : t.offset + t.nbytes] for t in transfers]
        torch._foreach_copy_(places, list(parts))
        return buffer

    def _to_host(self, part: Tensor, out: Bytes) -> None:
        """Queue a copy, in as many as there are separately pinned pieces in its way."""
        host = torch.from_numpy(out)
        for start, stop in self._pinned.split(address(out), len(out)):
            host[start:stop].copy_(part[start:stop], non_blocking=True)

    def sample(self, flat: Tensor, items: Tensor) -> Callable[[], Tensor]:
        """Queue a look at some elements on the caller's stream, without waiting for that stream.

        What is returned waits until they are on the host, and not for what was queued since.
        """
        index = items.pin_memory().to(flat.device, non_blocking=True)
        found = flat[index].to("cpu", non_blocking=True)  # into pinned memory
        there = self.mark()

        def fetch() -> Tensor:
            there.wait()
            return found

        return fetch

    def hold(self, event: Event) -> None:
        """See `Device.hold`."""
        assert isinstance(event, CudaEvent)
        torch.cuda.current_stream(self._index).wait_event(event.event)

    def pin(self, memory: Bytes) -> None:
        """See `Device.pin`."""
        code = _runtime().cudaHostRegister(address(memory), len(memory), _PORTABLE)
        if int(code) != 0:
            log.warning("%d bytes cannot be pinned (CUDA error %s)", len(memory), code)
            self._pageable.add(address(memory))
            self._forget_error()
        self._pinned.add(address(memory))

    def unpin(self, memory: Bytes) -> None:
        """See `Device.unpin`."""
        self._pinned.remove(address(memory))
        if address(memory) in self._pageable:
            self._pageable.remove(address(memory))
        else:
            _runtime().cudaHostUnregister(address(memory))

    def _forget_error(self) -> None:
        """Raise here what the runtime keeps of a failed call; the next kernel would otherwise."""
        with suppress(RuntimeError):
            torch.zeros(1, device=f"cuda:{self._index}")


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


@cache
def _cuda(index: int) -> CudaDevice:
    return CudaDevice(index)


def device_of(tensor: Tensor) -> CudaDevice | None:
    """Return the device whose streams bring a tensor to the host; None where reads just block."""
    if tensor.device.type != "cuda":
        return None
    return _cuda(
        torch.cuda.current_device() if tensor.device.index is None else tensor.device.index
    )
