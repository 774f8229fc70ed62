"""A device without hardware: streams and events as the core knows them, run in any legal order.

Nothing that is queued runs by itself. When the host waits for an event, or a test says `run`,
operations are run piece by piece, in an order that a seed or a function chooses among all that
streams and events allow: each stream from its front, and none past an event that has not been
reached. So an order that nobody demanded shows as wrong bytes, and a copy under a change as a torn
one. Real streams promise no more than that, and hide it behind their speed.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol, cast

from datastates.device import Bytes, Device, Event, Transfer
from datastates.grid import PAGE
from datastates.memory import address

__all__ = ["Choose", "DeviceBytes", "FakeDevice", "FakeEvent", "FakePins", "FakeStream"]

Choose = Callable[[int], int]
"""Given how many streams can go on, at least one, returns which does. The first is the default
stream, where it can; the last is that of the copies."""

_PATIENCE_S = 30.0
_PIECES = 4
_GARBAGE = 0xA5


class DeviceBytes(Protocol):
    """What a `FakeDevice` copies from: a source with memory on it."""

    @property
    def memory(self) -> Bytes:
        """The values, in C order."""


class FakeEvent(Event):
    """A point of a stream, reached when all before it has run."""

    def __init__(self, device: FakeDevice, *, reached: bool = False) -> None:
        self._device = device
        self.reached = reached
        """True once it is."""

    def wait(self) -> None:
        """Run the device until the point is reached; see `FakeDevice.stopped`."""
        self._device._wait(self)

    def reach(self) -> None:
        """Say that it is; the device does."""
        self.reached = True


class FakeStream:
    """What is queued, in order: pieces of operations, and events to wait for."""

    def __init__(self) -> None:
        self.queue: deque[Callable[[], object] | FakeEvent] = deque()
        """Changed by the device only."""

    def ready(self) -> bool:
        """Tell whether its first piece may run; drops events that were reached."""
        while self.queue and isinstance(first := self.queue[0], FakeEvent):
            if not first.reached:
                return False
            self.queue.popleft()
        return bool(self.queue)


class FakePins:
    """Host memory that is registered for fast copies, and what went wrong with it."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        """Pinned twice, unpinned twice, unpinned under a copy."""
        self._lock = threading.Lock()
        self._pinned: dict[int, int] = {}

    @property
    def nbytes(self) -> int:
        """How much is registered now."""
        with self._lock:
            return sum(self._pinned.values())

    def add(self, memory: Bytes) -> None:
        """Register a piece."""
        start, nbytes = address(memory), len(memory)
        with self._lock:
            if start % PAGE:
                self.faults.append("memory was pinned that does not start at a page")
            if any(at < start + nbytes and start < at + n for at, n in self._pinned.items()):
                self.faults.append("memory was pinned twice")
            self._pinned[start] = nbytes

    def remove(self, memory: Bytes) -> None:
        """Take a piece back."""
        with self._lock:
            if self._pinned.pop(address(memory), None) != len(memory):
                self.faults.append("memory was unpinned that was not pinned so")

    def hold(self, memory: Bytes) -> bool:
        """Tell whether all of `memory` is registered; in several pieces, it may be."""
        at, stop = address(memory), address(memory) + len(memory)
        with self._lock:
            while at < stop:
                ends = [s + n for s, n in self._pinned.items() if s <= at < s + n]
                if not ends:
                    return False
                at = ends[0]
        return True


class FakeDevice(Device):
    """Streams that run when somebody waits; `launch` queues work on them.

    Args:
        choose: the order of what may run in several; a number seeds a random one.
        pins: share them among several devices of one host.
    """

    def __init__(self, choose: Choose | int = 0, *, pins: FakePins | None = None) -> None:
        self._choose = choose if callable(choose) else random.Random(choose).randrange
        self.pins = pins or FakePins()
        """The memory that is pinned."""
        self.copies = self.transfers = 0
        """How many copies to the host were queued, and of how many parts."""
        self.pageable = 0
        """Copies into memory that was not pinned."""
        self.waits: list[int] = []
        """Of each time that the host waited for this device, the thread's identifier."""
        self._default, self._copying = FakeStream(), FakeStream()
        self._streams = [self._default, self._copying]
        self._current = threading.local()
        self._changed = threading.Condition(threading.RLock())
        self._going = True
        self._error: str | None = None

    # What a program does.

    def stream(self) -> FakeStream:
        """Make one more stream."""
        made = FakeStream()
        with self._changed:
            self._streams.insert(-1, made)
        return made

    @contextmanager
    def using(self, stream: FakeStream) -> Iterator[None]:
        """Let this thread queue on `stream`, instead of the one that all threads share."""
        before = self._stream()
        self._current.stream = stream
        try:
            yield
        finally:
            self._current.stream = before

    def _stream(self) -> FakeStream:
        return cast(FakeStream, getattr(self._current, "stream", self._default))

    def launch(self, *pieces: Callable[[], object]) -> None:
        """Queue an operation on this thread's stream; others may run between its pieces."""
        with self._changed:
            self._check()
            self._stream().queue.extend(pieces)

    # What a test does.

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Nothing runs meanwhile: whoever waits, waits; half a minute at most."""
        self.stop()
        try:
            yield
        finally:
            self.go()

    def stop(self) -> None:
        """Run nothing for those who wait."""
        with self._changed:
            self._going = False

    def go(self) -> None:
        """Run again when somebody waits."""
        with self._changed:
            self._going = True
            self._changed.notify_all()

    def run(self, pieces: int | None = None) -> None:
        """Run so many pieces of what is queued; all of it by default."""
        with self._changed:
            while pieces != 0 and any(stream.queue for stream in self._streams):
                self._step()
                pieces = None if pieces is None else pieces - 1

    def until_copies(self, count: int) -> None:
        """Wait until so many copies have been queued since the beginning."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.copies >= count, _PATIENCE_S):
                raise RuntimeError(f"{self.copies} copies were queued, not {count}")

    def fail(self, error: str) -> None:
        """End it, as an error of real devices does: whatever is asked of it from now on raises."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    # How it runs.

    def _check(self) -> None:
        if self._error is not None:
            raise RuntimeError(self._error)

    def _step(self) -> None:
        """Run one piece of any stream that can go on."""
        self._check()
        ready = [stream for stream in self._streams if stream.ready()]
        if not ready:
            if any(stream.queue for stream in self._streams):
                raise RuntimeError("no stream can go on: they wait for each other")
            return
        piece = ready[self._choose(len(ready))].queue.popleft()
        assert not isinstance(piece, FakeEvent)
        piece()

    def _wait(self, event: FakeEvent) -> None:
        with self._changed:
            self.waits.append(threading.get_ident())
            self._changed.wait_for(lambda: event.reached or self._going or self._error, _PATIENCE_S)
            if not (event.reached or self._going or self._error):
                raise RuntimeError("the host waits for a device that a test has stopped")
            while not event.reached:
                self._step()

    def _record(self, stream: FakeStream) -> FakeEvent:
        event = FakeEvent(self)
        stream.queue.append(event.reach)
        return event

    # The seam.

    def mark(self) -> FakeEvent:
        """See `Device.mark`."""
        with self._changed:
            self._check()
            return self._record(self._stream())

    def copy(self, transfers: Sequence[Transfer], out: Bytes, after: Event) -> FakeEvent:
        """See `Device.copy`; what lies between the transfers is spoilt."""
        assert isinstance(after, FakeEvent)
        with self._changed:
            self._check()
            self.copies += 1
            self.transfers += len(transfers)
            pinned = self.pins.hold(out)
            self.pageable += not pinned
            queue = self._copying.queue
            queue += [after, partial(out.fill, _GARBAGE)]
            for transfer in transfers:
                queue += self._pieces(transfer, out, pinned)
            event = self._record(self._copying)
            self._changed.notify_all()
            return event

    def _pieces(self, t: Transfer, out: Bytes, pinned: bool) -> Iterator[Callable[[], object]]:
        """Yield the parts of a transfer; the source's memory lives until they have run."""
        memory = cast(DeviceBytes, t.source).memory[t.start : t.start + t.nbytes]
        place = out[t.offset : t.offset + t.nbytes]
        step = max(PAGE, -(-t.nbytes // _PIECES))
        for at in range(0, t.nbytes, step):
            yield partial(self._move, memory[at : at + step], place[at : at + step], pinned)

    def _move(self, memory: Bytes, place: Bytes, pinned: bool) -> None:
        if pinned and not self.pins.hold(place):
            self.pins.faults.append("memory was unpinned under a copy")
        place[:] = memory

    def hold(self, event: Event) -> None:
        """See `Device.hold`."""
        assert isinstance(event, FakeEvent)
        with self._changed:
            self._stream().queue.append(event)

    def pin(self, memory: Bytes) -> None:
        """See `Device.pin`."""
        self.pins.add(memory)

    def unpin(self, memory: Bytes) -> None:
        """See `Device.unpin`."""
        self.pins.remove(memory)
