"""Reading arrays back, decided: which extents are read, and where their bytes go. Pure.

An extent that is wanted whole is read straight into the target's memory. One of which only a part
is wanted (a view of a larger array), or which goes to a sink (strided or device memory), passes
through scratch memory. `reading` does what is planned here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .loader import ReadRequest
from .manifest import Manifest
from .plan import Extent
from .provider import Bytes, Sink

__all__ = ["ExtentRead", "Part", "extents_of", "fill_inline", "plan_reads"]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Some bytes of an extent, and where they go."""

    start: int
    """First byte, in the extent."""
    nbytes: int
    out: Bytes | Sink
    at: int
    """Where the bytes go in `out`."""

    def put(self, values: Bytes) -> None:
        """Hand the bytes out."""
        data = values[self.start : self.start + self.nbytes]
        if isinstance(self.out, np.ndarray):
            np.copyto(self.out[self.at : self.at + self.nbytes], data)
        else:
            self.out.write(self.at, data)


@dataclass(frozen=True, slots=True, eq=False)
class ExtentRead:
    """One extent to be read and verified."""

    extent: Extent
    nbytes: int
    """Bytes of values in the extent, without padding and checksum."""
    padding: int
    """Zero bytes after them, which the checksum covers."""
    out: Bytes | None = None
    """Where the values go; None where only parts are wanted."""
    parts: tuple[Part, ...] = ()
    stored: bool = False
    """Read padding and checksum as they are stored, and check those too; only the scratch."""

    @property
    def room(self) -> int:
        """Bytes of memory that the read takes."""
        return self.extent.nbytes if self.stored else self.nbytes


def extents_of(manifest: Manifest, index: int) -> list[tuple[Extent, int, int, int]]:
    """Return each extent of an array with its first byte in it, its value bytes and padding."""
    array = manifest.arrays[index]
    grid, found = array.grid, []
    for i in range(array.extents):
        piece = grid.piece(i)
        extent = Extent(index, i, array.offset + i * grid.stride, grid.chunk_nbytes + 4)
        found.append((extent, piece.start, piece.nbytes, piece.padding))
    return found


def plan_reads(manifest: Manifest, requests: Sequence[ReadRequest]) -> list[ExtentRead]:
    """Return the reads that fill all requests, in the order of the image. Pure."""
    wanted: dict[int, list[ReadRequest]] = {}
    for request in requests:
        wanted.setdefault(request.array, []).append(request)
    reads = []
    for index, those in wanted.items():
        extents = extents_of(manifest, index)
        starts = [start for _, start, _, _ in extents]
        touching = _touching(starts, those)
        for (extent, start, nbytes, padding), some in zip(extents, touching, strict=True):
            if some:
                reads.append(_cover(ExtentRead(extent, nbytes, padding), start, some))
    return sorted(reads, key=lambda read: read.extent.offset)


def _touching(starts: Sequence[int], requests: Iterable[ReadRequest]) -> list[list[ReadRequest]]:
    """Return for each extent the requests that it has bytes of."""
    found: list[list[ReadRequest]] = [[] for _ in starts]
    for request in requests:
        first = max(0, bisect_right(starts, request.start) - 1)
        stop = bisect_left(starts, request.start + request.nbytes)
        for among in found[first:stop]:
            among.append(request)
    return found


def fill_inline(manifest: Manifest, requests: Sequence[ReadRequest]) -> None:
    """Fill in the values that the manifest itself holds."""
    for request in requests:
        inline = manifest.arrays[request.array].inline
        if inline is not None:
            values = np.frombuffer(inline, np.uint8)
            Part(request.start, request.nbytes, request.out, 0).put(values)


def _cover(read: ExtentRead, start: int, requests: Iterable[ReadRequest]) -> ExtentRead:
    whole: Bytes | None = None
    parts: list[Part] = []
    for request in requests:
        first = max(start, request.start)
        nbytes = min(start + read.nbytes, request.start + request.nbytes) - first
        at = first - request.start
        if nbytes <= 0:
            continue
        if whole is None and nbytes == read.nbytes and isinstance(request.out, np.ndarray):
            whole = request.out[at : at + nbytes]
        else:
            parts.append(Part(first - start, nbytes, request.out, at))
    return ExtentRead(read.extent, read.nbytes, read.padding, whole, tuple(parts))
