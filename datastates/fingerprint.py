"""Has a leaf changed between the call and its copy? Samples of every piece tell.

An update of a whole tensor changes every block that it reaches before the copy does, whatever
counts or does not count it. So a few elements of each block of 1 MiB are looked at in the call,
its first and last among them, and compared with the same elements of the copy. What changes single
elements only (an embedding's row, outside of the optimizer) can slip through: for hunting that,
there is the full check, a checksum of everything in the call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .device import Bytes
from .grid import Grid
from .provider import Watch

__all__ = ["Fingerprint"]

_BLOCK_NBYTES = 1 << 20
_INSIDE = (0.382, 0.764)  # of a block, between its first and its last element; nothing regular

Items = npt.NDArray[np.int64]


@lru_cache(maxsize=4096)
def _samples(grid: Grid) -> tuple[Items, ...]:
    """Return which elements of each chunk are looked at, counted in the whole array."""
    return tuple(_of_piece(grid, index) for index in range(grid.count))


def _of_piece(grid: Grid, index: int) -> Items:
    piece = grid.piece(index)
    first, count = piece.start // grid.itemsize, piece.nbytes // grid.itemsize
    block = max(1, _BLOCK_NBYTES // grid.itemsize)
    starts = np.arange(0, count, block, dtype=np.int64)
    lengths = np.minimum(starts + block, count) - starts
    inside = [starts + (lengths * part).astype(np.int64) for part in _INSIDE]
    return np.unique(np.concatenate([starts, starts + lengths - 1, *inside])) + first


class Fingerprint:
    """A few elements of every piece of a leaf, as they were when this was made."""

    def __init__(self, watch: Watch, grid: Grid) -> None:
        self._grid = grid
        self._items = _samples(grid)
        self._sampled: Callable[[], Bytes] | None = watch.sample(np.concatenate(self._items))
        self._expected: Bytes | None = None

    def matches(self, index: int, copy: Bytes) -> bool:
        """Tell whether `copy`, the values of chunk `index`, has the elements of then."""
        size = self._grid.itemsize
        first = self._grid.piece(index).start // size
        found = copy.reshape(-1, size)[self._items[index] - first]
        at = sum(map(len, self._items[:index]))
        expected = self._values()[at : at + len(found)]
        return bool(np.array_equal(found, expected))

    def _values(self) -> Bytes:
        """Fetch the samples, once; several threads may, and find the same."""
        if self._expected is None:
            sampled = self._sampled
            if sampled is not None:
                self._expected = sampled().reshape(-1, self._grid.itemsize)
                self._sampled = None
        assert self._expected is not None
        return self._expected
