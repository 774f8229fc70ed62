"""Arrays as sources and sinks of bytes in C order, whatever their strides.

Providers use these: `ArraySource` to hand a numpy view over for saving, `bytes_of` to have it
filled in place when it is contiguous, `ArraySink` when it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from .provider import Bytes

__all__ = [
    "ArraySink",
    "ArraySource",
    "bytes_of",
    "is_c_order",
    "is_dense",
    "is_disjoint",
    "reach",
    "walk",
]


@lru_cache(maxsize=4096)
def reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return how far the last element is from the first, in the unit of `strides`."""
    return sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


@lru_cache(maxsize=4096)
def is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Tell whether the elements fill one run of memory, without holes or overlap.

    `strides` are in elements.
    """
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def bytes_of(array: npt.NDArray[Any]) -> Bytes:
    """Return the memory of a C-contiguous array as bytes, not a copy."""
    return array.reshape(-1).view(np.uint8)


@lru_cache(maxsize=4096)
def is_c_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Tell whether the elements lie one behind the other in C order; `strides` in elements."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def is_disjoint(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Tell whether no two elements can share memory; `strides` in any unit."""
    reach = 0
    for stride, size in sorted((abs(s), n) for s, n in zip(strides, shape, strict=True)):
        if size > 1 and stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def walk(array: Any, start: int, flat: Any, move: Callable[[Any, Any], object]) -> None:
    """Call `move(part of array, part of flat)` for the elements from `start`, in C order.

    `array` and the one-dimensional `flat` are both numpy arrays, or both tensors.
    """
    if array.ndim <= 1:
        move(array.reshape(-1)[start : start + len(flat)] if array.ndim else array, flat)
        return
    row = prod(array.shape[1:])
    index, offset = divmod(start, row)
    at = 0
    if offset:
        at = min(row - offset, len(flat))
        walk(array[index], offset, flat[:at], move)
        index += 1
    whole = (len(flat) - at) // row
    if whole:
        stop = at + whole * row
        move(array[index : index + whole], flat[at:stop].reshape(whole, *array.shape[1:]))
        index, at = index + whole, stop
    if at < len(flat):
        walk(array[index], 0, flat[at:], move)


class ArraySource:
    """The bytes of an array in C order. Keeps the array alive."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array
        self._bytes = bytes_of(array) if array.flags.c_contiguous else None

    def read(self, start: int, out: Bytes) -> None:
        """Copy `[start, start + len(out))` into `out`."""
        if self._bytes is not None:
            np.copyto(out, self._bytes[start : start + len(out)])
        else:
            size = self._array.itemsize
            flat = out.view(self._array.dtype)
            walk(self._array, start // size, flat, lambda part, run: np.copyto(run, part))


class ArraySink:
    """Takes the bytes of an array in C order and puts them where its strides say.

    `dtype` is that of the bytes, where it differs from the array's in byte order.
    """

    def __init__(self, array: npt.NDArray[Any], dtype: np.dtype[Any] | None = None) -> None:
        self._array, self._dtype = array, dtype or array.dtype
        self.nbytes = array.nbytes
        """How many bytes fill it."""

    def write(self, start: int, data: Bytes) -> None:
        """Store the bytes `[start, start + len(data))`."""
        flat = data.view(self._dtype)
        walk(self._array, start // self._array.itemsize, flat, np.copyto)
