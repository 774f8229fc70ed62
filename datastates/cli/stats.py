"""Statistics of an array in one pass over it, in memory that does not depend on its size.

Mean and variance are merged block by block (Chan, Golub and LeVeque), which loses nothing to
cancellation. For the histogram, values are counted by the first 20 bits of their float64: sign,
exponent and 8 bits of mantissa, so within 0.4 %. Only when all are seen, and the range is known,
are these million narrow bins summed up to the few that are shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Bin", "Statistics", "Summary"]

_BLOCK = 1 << 20
_BITS = 20


@dataclass(frozen=True, slots=True)
class Bin:
    """One bar of a histogram."""

    start: float
    stop: float
    """Belongs to the next bin, but to the last bin itself."""
    count: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """What an array is like. Complex numbers are described by their magnitudes."""

    elements: int
    nan: int
    inf: int
    zeros: int
    min: float | None
    """This and the following ones: of the finite values. None where there are none, or where
    their sums are beyond a float64."""
    max: float | None
    mean: float | None
    std: float | None
    histogram: tuple[Bin, ...]


class Summary:
    """Takes the values of one array, run by run."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._exact = dtype.kind in "biu"
        self._elements = self._nan = self._inf = self._zeros = 0
        self._finite, self._mean, self._squares = 0, 0.0, 0.0
        self._low: Any = None
        self._high: Any = None
        self._bins = np.zeros(1 << _BITS, np.int64)

    def add(self, values: npt.NDArray[Any]) -> None:
        """Count the elements of a one-dimensional array."""
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, len(values), _BLOCK):
                self._add(values[start : start + _BLOCK])

    def _add(self, block: npt.NDArray[Any]) -> None:
        is_complex = block.dtype.kind == "c"
        wide = np.abs(block.astype(np.complex128)) if is_complex else block.astype(np.float64)
        self._elements += len(block)
        self._zeros += int(np.count_nonzero(wide == 0))
        if not self._exact:
            finite = np.isfinite(wide)
            if not finite.all():
                nan = int(np.count_nonzero(np.isnan(wide)))
                self._nan += nan
                self._inf += len(wide) - int(np.count_nonzero(finite)) - nan
                wide = wide[finite]
        if len(wide):
            self._merge(wide, block if self._exact else wide)

    def _merge(self, wide: npt.NDArray[np.float64], exact: npt.NDArray[Any]) -> None:
        low, high = exact.min().item(), exact.max().item()
        self._low = low if self._low is None else min(self._low, low)
        self._high = high if self._high is None else max(self._high, high)
        count, mean = len(wide), float(wide.mean())
        delta, self._finite = mean - self._mean, self._finite + count
        before = self._finite - count
        self._squares += (
            float(np.square(wide - mean).sum()) + delta * delta * before * count / self._finite
        )
        self._mean += delta * count / self._finite
        keys = wide.view(np.uint64) >> np.uint64(64 - _BITS)
        self._bins += np.bincount(keys.astype(np.int64), minlength=1 << _BITS)

    def result(self, bins: int) -> Statistics:
        """Return the statistics of all that was added, with a histogram of at most `bins` bars."""
        counts = (self._elements, self._nan, self._inf, self._zeros)
        if not self._finite:
            return Statistics(*counts, None, None, None, None, ())
        mean = self._mean if isfinite(self._mean) else None
        std = sqrt(self._squares / self._finite) if isfinite(self._squares) else None
        histogram = self._histogram(bins)
        return Statistics(*counts, self._low, self._high, mean, std, histogram)

    def _histogram(self, bins: int) -> tuple[Bin, ...]:
        low, high = float(self._low), float(self._high)
        if self._exact:  # bars of whole numbers, up to the next one after the highest
            bins = min(bins, int(self._high) - int(self._low) + 1)
            high = float(int(self._high) + 1)
        keys = np.flatnonzero(self._bins)
        values = (keys.astype(np.uint64) << np.uint64(64 - _BITS)).view(np.float64).clip(low, high)
        bins = bins if high > low else 1
        edges = np.linspace(low / 2, high / 2, bins + 1) * 2  # the width itself may be too large
        where = np.searchsorted(edges[1:-1], values, side="right")
        sums = np.bincount(where, self._bins[keys], minlength=bins)
        return tuple(Bin(float(edges[i]), float(edges[i + 1]), int(n)) for i, n in enumerate(sums))
