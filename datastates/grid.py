"""How an array is cut into chunks that are contiguous in it.

One rule: find the first dimension whose rows fit the limit, take whole rows of it, and one index
of each dimension before. Each chunk is then one run of bytes of the array in C order, so it is
copied, checksummed, sent and read as such. Rows are spread evenly, so the last chunk, which is
padded to full size as Zarr demands, wastes less than one row per chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

__all__ = ["CHECKSUM_NBYTES", "PAGE", "Grid", "Piece", "align", "cut"]

PAGE = 4096
"""Alignment of extents, in bytes: what direct I/O asks for on every disk we know."""

CHECKSUM_NBYTES = 4
"""Bytes of the crc32c that follows each chunk (Zarr's own codec)."""


def align(nbytes: int, to: int = PAGE) -> int:
    """Round `nbytes` up to a multiple of `to`."""
    return -(-nbytes // to) * to


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of an array that one chunk holds."""

    start: int
    """First byte, in the array's bytes in C order."""
    nbytes: int
    """Bytes of the array in the chunk, `[start, start + nbytes)`."""
    padding: int
    """Zero bytes that fill the chunk up after them."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A regular chunk grid over one array, in C order."""

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    """Chunk shape: ones, then a number of rows, then whole dimensions."""
    itemsize: int

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of one full chunk, without its checksum."""
        return prod(self.chunk) * self.itemsize

    @property
    def counts(self) -> tuple[int, ...]:
        """Chunks along each dimension."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk, strict=True))

    @property
    def count(self) -> int:
        """Number of chunks; 0 for an array without elements."""
        return prod(self.counts)

    @property
    def stride(self) -> int:
        """Bytes from one extent to the next: aligned where there is more than one."""
        stored = self.chunk_nbytes + CHECKSUM_NBYTES
        return align(stored) if self.count > 1 else stored

    @property
    def outer(self) -> tuple[int, ...]:
        """Shape of the whole grid: the shape of the Zarr shard that holds all chunks."""
        return tuple(n * c for n, c in zip(self.counts, self.chunk, strict=True))

    @property
    def split(self) -> int:
        """The dimension whose rows are shared out: later ones are whole, earlier ones single."""
        whole = tuple(max(1, n) for n in self.shape)
        return next(d for d in range(len(whole)) if self.chunk[d + 1 :] == whole[d + 1 :])

    def is_contiguous(self) -> bool:
        """Tell whether each chunk is one run of bytes of the array, as `cut` makes them."""
        if len(self.chunk) != len(self.shape) or min((*self.shape, *self.chunk, 1)) < 0:
            return False
        if not self.shape:
            return True
        rows, split = max(1, self.shape[self.split]), self.split
        return set(self.chunk[:split]) <= {1} and 1 <= self.chunk[split] <= rows

    def piece(self, index: int) -> Piece:
        """Return what chunk `index` (in C order of the grid) holds."""
        if self.chunk == self.shape or not self.shape:
            return Piece(0, prod(self.shape) * self.itemsize, 0)
        split = self.split
        row = prod(self.shape[split + 1 :]) * self.itemsize
        outer, inner = divmod(index, self.counts[split])
        first = inner * self.chunk[split]
        rows = min(self.chunk[split], self.shape[split] - first)
        start = (outer * self.shape[split] + first) * row
        return Piece(start, rows * row, (self.chunk[split] - rows) * row)


def cut(shape: tuple[int, ...], itemsize: int, limit: int) -> Grid:
    """Return the grid over an array of `shape` whose chunks are at most `limit` bytes.

    A single element larger than `limit` still gets a chunk of its own.
    """
    whole = tuple(max(1, n) for n in shape)
    if prod(whole) * itemsize <= limit or not shape:
        return Grid(shape, whole, itemsize)
    split = 0
    while split + 1 < len(shape) and prod(whole[split + 1 :]) * itemsize > limit:
        split += 1
    fit = max(1, limit // (prod(whole[split + 1 :]) * itemsize))
    pieces = -(-whole[split] // fit)
    rows = -(-whole[split] // pieces)
    return Grid(shape, (1,) * split + (rows,) + whole[split + 1 :], itemsize)
