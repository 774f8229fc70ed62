"""Snapshot: the bytes of the leaves, copied and checksummed, as of one moment.

What is copied before `save_async` returns cannot be reached by anything that follows. What is
copied later is proven not to have been: its watch's stamp is the one of the call, and a
fingerprint of every piece, taken in the call, is found in the copy. A torn copy is an error that
names the tensor; it is never published.

Copies from host memory run on our own threads, because torch's pool collapses on busy cores, in
blocks that stay in the cache between copy and checksum. Copies from devices are queued on their
own streams (`begin`), many at once, and only then waited for (`finish`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Sequence

import numpy as np
from crc32c import crc32c

from .device import Bytes, Device, Event, Transfer
from .errors import ChangedError
from .fingerprint import Fingerprint
from .grid import CHECKSUM_NBYTES, Piece
from .plan import Extent, Plan, Segment
from .provider import ArrayLeaf

__all__ = ["Image", "checksum_padding"]

_BLOCK_NBYTES = 1 << 20
_ZEROS = bytes(1 << 16)


def checksum_padding(checksum: int, nbytes: int) -> int:
    """Return the crc32c of what `checksum` covers, followed by `nbytes` zero bytes."""
    while nbytes > 0:
        checksum = crc32c(_ZEROS[: min(nbytes, len(_ZEROS))], checksum)
        nbytes -= len(_ZEROS)
    return checksum


class Image:
    """The leaves of one save on their way into the arena; drops them once they are copied.

    Life: `capture` in the call; `begin` and `finish` for each segment, from any thread;
    `settle` in the caller's thread, when it is about to change what is lazy.
    """

    def __init__(self, plan: Plan, leaves: Sequence[ArrayLeaf]) -> None:
        self._arrays, self._grids = plan.arrays, plan.grids
        self._leaves = dict(enumerate(leaves))
        self._sums: dict[int, dict[int, int]] = {}
        self._stamps: dict[int, Hashable] = {}
        self._prints: dict[int, Fingerprint] = {}
        self._expected: dict[int, list[int]] = {}
        self._marks: dict[Device, Event] = {}
        self._last: dict[Device, Event] = {}
        self._lock = threading.Lock()
        self._settled = False

    # The call.

    def capture(self, lazy: Collection[int], *, full: bool) -> None:
        """Note how things stand now: the order on devices, and what tells a change of the lazy.

        Args:
            lazy: arrays that will be copied after the call; each has a watch.
            full: read all of them, to catch the change of a single byte.
        """
        for device in dict.fromkeys(leaf.device for leaf in self._leaves.values()):
            if device is not None:
                self._marks[device] = device.mark()
        for i in lazy:
            watch = self._leaves[i].watch
            if watch is None or not self._arrays[i].extents:
                continue
            self._stamps[i] = watch.stamp()
            self._prints[i] = Fingerprint(watch, self._grids[i])
            if full:
                self._expected[i] = self._checksums_of(i)

    def _checksums_of(self, i: int) -> list[int]:
        grid = self._grids[i]
        room = np.empty(grid.chunk_nbytes, np.uint8)
        pieces = map(grid.piece, range(grid.count))
        return [checksum_padding(self._checksum(i, p, room, False), p.padding) for p in pieces]

    @property
    def devices(self) -> Collection[Device]:
        """The devices that leaves lie on; known once they were captured."""
        return self._marks.keys()

    # The copies.

    def fill(self, segment: Segment, data: Bytes) -> None:
        """Copy a segment into its piece of the arena; blocks until it is there."""
        self.finish(segment, data, self.begin(segment, data))

    def begin(self, segment: Segment, data: Bytes) -> Event | None:
        """Queue what a device has to copy of a segment; None where it is the host's.

        Raises:
            ChangedError: a lazy one of them has changed since the call.
        """
        device = self._leaves[segment.extents[0].array].device
        if device is None:
            return None
        arrays = {extent.array for extent in segment.extents}
        self._check_unsettled(arrays)  # their memory may be gone, and a device is lost by that
        transfers = []
        for extent in segment.extents:
            piece = self._grids[extent.array].piece(extent.index)
            source = self._leaves[extent.array].source
            at = extent.offset - segment.offset
            transfers.append(Transfer(source, piece.start, at, piece.nbytes))
        event = device.copy(transfers, data, self._marks[device])
        try:
            with self._lock:
                self._last[device] = event
            self._check_unsettled(arrays)
        except BaseException:
            event.wait()  # it writes there until then
            raise
        return event

    def finish(self, segment: Segment, data: Bytes, copied: Event | None) -> None:
        """Complete a segment: copies of host memory, checksums, padding; compare what is lazy.

        Raises:
            ChangedError: a lazy leaf has changed since the call.
        """
        if copied is not None:
            copied.wait()
        stop = 0
        for extent in segment.extents:
            start = extent.offset - segment.offset
            if start > stop:
                data[stop:start] = 0  # what another save left there must not reach the disk
            stop = start + extent.nbytes
            self._finish_extent(extent, data[start:stop], copied is not None)
        data[stop : segment.nbytes] = 0
        if segment.lazy:
            with self._lock:
                if not self._settled or copied is None:
                    self._check_stamps({extent.array for extent in segment.extents})

    def _finish_extent(self, extent: Extent, out: Bytes, there: bool) -> None:
        i, grid = extent.array, self._grids[extent.array]
        piece = grid.piece(extent.index)
        checksum = self._checksum(i, piece, out, there)
        if piece.padding:
            out[piece.nbytes : -CHECKSUM_NBYTES] = 0
            checksum = checksum_padding(checksum, piece.padding)
        out.data[-CHECKSUM_NBYTES:] = checksum.to_bytes(CHECKSUM_NBYTES, "little")
        self._sums.setdefault(i, {})[extent.index] = checksum
        if i in self._prints and not self._prints[i].matches(extent.index, out[: piece.nbytes]):
            raise self._changed(i)
        if i in self._expected and self._expected[i][extent.index] != checksum:
            raise self._changed(i)

    def _checksum(self, i: int, piece: Piece, out: Bytes, there: bool) -> int:
        """Copy a piece, unless it is there, and return its checksum, block by block."""
        leaf, checksum = self._leaves[i], 0
        for start in range(0, piece.nbytes, _BLOCK_NBYTES):
            block = out[start : min(start + _BLOCK_NBYTES, piece.nbytes)]
            if not there:
                self._check_stamps((i,))  # its memory may be gone
                leaf.source.read(piece.start + start, block)
            checksum = crc32c(block.data, checksum)
        return checksum

    def _check_unsettled(self, arrays: Collection[int]) -> None:
        with self._lock:
            if not self._settled:
                self._check_stamps(arrays)

    def _check_stamps(self, arrays: Collection[int]) -> None:
        for i in arrays:
            if i in self._stamps:
                watch = self._leaves[i].watch
                if watch is None or watch.stamp() != self._stamps[i]:
                    raise self._changed(i)

    def _changed(self, i: int) -> ChangedError:
        name = self._arrays[i].node
        return ChangedError(
            f"{name} changed after save_async and before it was copied, outside of the step of a "
            "guarded optimizer; call fence() before you change it, or do not make it lazy",
            key=name,
        )

    # The order of what follows.

    def hold_devices(self) -> None:
        """Let what this thread queues from now on run behind the copies that have begun."""
        with self._lock:
            last = list(self._last.items())
        for device, event in last:
            device.hold(event)

    def settle(self, fail: Callable[[Exception], object], late: Exception | None = None) -> None:
        """Allow the caller to change what was lazy; every segment has begun.

        From here on counters may move: on a device the copies may not have ended, but what the
        caller queues now runs behind them.

        Args:
            fail: called where a lazy leaf has changed before. Under the lock: once the sources
                are dropped, the save may end well at any moment, and must not fail after that.
            late: why it fails where not all is copied; None where every segment has begun.
        """
        with self._lock:
            try:
                if late is not None and self._leaves:
                    raise late
                if not self._settled:
                    on_devices = [i for i in self._stamps if self._leaves[i].device is not None]
                    self._check_stamps(on_devices)
            except Exception as error:
                fail(error)
            self._settled = True
        self.hold_devices()

    def drop_copied(self) -> None:
        """Let go of what was copied in the call, in the caller's thread.

        To free a tensor is to let the interpreter's lock go, and to get it back takes a thread of
        ours 5 ms each time where the caller's is busy: with thousands, that is many seconds.
        """
        for i, leaf in list(self._leaves.items()):
            if leaf.device is None and i not in self._stamps:
                del self._leaves[i]

    def drop_sources(self) -> None:
        """Let go of the caller's memory; called when all is copied, or nothing more will be."""
        with self._lock:
            self._settled = True
            for kept in (self._stamps, self._prints, self._expected, self._marks, self._last):
                kept.clear()
            self._leaves.clear()

    def checksums(self) -> tuple[tuple[int, ...], ...]:
        """Return the checksums of each array's extents, once all are filled."""
        found = (self._sums.get(i, {}) for i in range(len(self._arrays)))
        return tuple(tuple(sums[k] for k in sorted(sums)) for sums in found)
