"""Snapshot: the bytes of the leaves, copied and checksummed, as of one moment.

Here the snapshot is eager: every byte is in the arena before the caller goes on, so nothing that
the caller does afterwards can reach it. Copies run on our own threads, because torch's pool
collapses on busy cores, and in blocks that stay in the cache between copy and checksum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from crc32c import crc32c

from .grid import CHECKSUM_NBYTES, Grid, align
from .plan import Segment
from .provider import ArrayLeaf, Bytes

__all__ = ["Image", "checksum_padding", "fill_extent"]

_BLOCK_NBYTES = 1 << 20
_ZEROS = bytes(1 << 16)


def checksum_padding(checksum: int, nbytes: int) -> int:
    """Return the crc32c of what `checksum` covers, followed by `nbytes` zero bytes."""
    while nbytes > 0:
        checksum = crc32c(_ZEROS[: min(nbytes, len(_ZEROS))], checksum)
        nbytes -= len(_ZEROS)
    return checksum


def fill_extent(leaf: ArrayLeaf, grid: Grid, index: int, out: Bytes) -> int:
    """Copy chunk `index` of a leaf into `out`: values, padding, checksum; return the checksum."""
    piece = grid.piece(index)
    checksum = 0
    for start in range(0, piece.nbytes, _BLOCK_NBYTES):
        block = out[start : min(start + _BLOCK_NBYTES, piece.nbytes)]
        leaf.source.read(piece.start + start, block)
        checksum = crc32c(block.data, checksum)
    if piece.padding:
        out[piece.nbytes : -CHECKSUM_NBYTES] = 0
        checksum = checksum_padding(checksum, piece.padding)
    out[-CHECKSUM_NBYTES:] = np.frombuffer(checksum.to_bytes(4, "little"), np.uint8)
    return checksum


class Image:
    """The leaves of one save on their way into the arena; drops them once they are copied."""

    def __init__(self, leaves: Sequence[ArrayLeaf], grids: Sequence[Grid]) -> None:
        self._leaves = list(leaves)
        self._grids = grids
        self._sums = [[0] * grid.count for grid in grids]

    def fill(self, segment: Segment, data: Bytes) -> None:
        """Copy a segment into its piece of the arena. Several threads, a segment each."""
        for extent in segment.extents:
            start = extent.offset - segment.offset
            stop = start + extent.nbytes
            i = extent.array
            self._sums[i][extent.index] = fill_extent(
                self._leaves[i], self._grids[i], extent.index, data[start:stop]
            )
            data[stop : align(stop)] = 0  # what another save left there must not reach the disk

    def drop_sources(self) -> None:
        """Let go of the caller's memory; called when all is copied, or nothing more will be."""
        self._leaves.clear()

    def checksums(self, counts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Return the checksums of each array's `counts` extents, once all are filled."""
        return tuple(tuple(sums) if n else () for n, sums in zip(counts, self._sums, strict=True))
