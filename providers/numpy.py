"""Numpy arrays: same bits, same dtype, same memory order.

What Zarr has no data type for (dates, strings, records, long doubles) is stored as the bytes of
its elements, with the dtype beside it. Byte order is kept, too; on disk all is little-endian.
Arrays of Python objects are refused.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from datastates.dtypes import name_of, numpy_dtype
from datastates.errors import FormatError, NoMemoryError
from datastates.provider import (
    ArrayLeaf,
    Bytes,
    Finish,
    LeafRef,
    Loader,
    Memory,
    Provider,
    Saver,
    Sink,
)
from datastates.sources import ArraySink, ArraySource, bytes_of

from .numpy_values import describe, described

Array = npt.NDArray[Any]


def _memory(array: Array) -> Memory | None:
    """Where an array lies; only those in C order are tied to others, as slices of one memory."""
    if not (array.flags.c_contiguous and array.size):
        return None
    low, high = np.lib.array_utils.byte_bounds(array)
    strides = tuple(s // array.itemsize for s in array.strides)
    return Memory("numpy", low, high, strides, True)


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype if dtype.kind in "VSU" else dtype.newbyteorder("=")


def _as_stored(array: Array) -> tuple[str, Array]:
    """Return the Zarr data type and the array in it; the bytes of its elements where none fits."""
    native = _native(array.dtype)
    name = name_of(native)
    if name is not None:
        return name, array.astype(native, copy=False)
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return "uint8", raw.reshape(*array.shape, array.dtype.itemsize)


class NumpyProvider(Provider):
    """Takes `numpy.ndarray`."""

    name = "numpy"
    priority = -20
    in_place = True

    def claims(self, kind: type) -> bool:
        """Exactly arrays: subclasses have state of their own."""
        return kind is np.ndarray

    def split(self, value: Any, saver: Saver) -> Any:
        """See `Provider.split`."""
        dtype = describe(value.dtype, saver)
        if value.dtype.itemsize == 0:
            raise saver.refuse(f"arrays of the empty numpy dtype {value.dtype} have no bytes")
        zarr_name, stored = _as_stored(value)
        memory = _memory(value) if stored is value else None
        leaf = ArrayLeaf(zarr_name, stored.shape, ArraySource(stored), memory)
        order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        return {"dtype": dtype, "array": saver.array(leaf), "order": order}

    def join(self, data: Any, target: Any, loader: Loader) -> Finish:
        """See `Provider.join`."""
        ref, dtype = data["array"], described(data["dtype"], loader)
        shape = _stored_shape(ref, dtype, loader)
        fits = _fits(target, shape, dtype)
        if target is not None and not fits and not loader.adopting:
            loader.mismatch(f"{_status(target)} here, {dtype} {shape} stored")
            return lambda: target
        if fits and target.size and not loader.claim(ref, "numpy", target.ctypes.data):
            return lambda: target
        array = target if fits else _make(data, shape, dtype, loader)
        loader.read(ref, _destination(array))
        return lambda: array


def _stored_shape(ref: LeafRef, dtype: np.dtype[Any], loader: Loader) -> tuple[int, ...]:
    """Return the shape of an array; where Zarr has no such type, the last dimension is bytes."""
    name, shape = loader.describe(ref)
    native = _native(dtype)
    if name_of(native) == name:
        return shape
    if name_of(native) or name != "uint8" or shape[-1:] != (dtype.itemsize,):
        raise loader.error(FormatError, f"its dtype {dtype} is stored as {name} {shape}")
    return shape[:-1]


def _destination(array: Array) -> Bytes | Sink:
    """Return where to read an array's bytes to: straight into its memory where that is possible."""
    native = _native(array.dtype)
    if name_of(native) and not array.dtype.isnative:
        return ArraySink(array, native)
    if array.flags.c_contiguous:
        return bytes_of(array)
    return ArraySink(array if name_of(native) else array.view(f"V{array.itemsize}"))


def _make(data: Any, shape: tuple[int, ...], dtype: np.dtype[Any], loader: Loader) -> Array:
    """Return a new array, over memory that names may share."""
    alias = loader.alias(data["array"])
    base, offset = (data["array"], 0) if alias is None else (LeafRef(alias.base), alias.offset)
    name, base_shape = loader.describe(base)
    nbytes = prod(base_shape) * numpy_dtype(name).itemsize
    flat: Bytes = loader.shared(base, lambda: _allocate(nbytes, loader))
    size = prod(shape) * dtype.itemsize
    return flat[offset : offset + size].view(dtype).reshape(shape, order=data["order"])


def _fits(target: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    return (
        type(target) is np.ndarray
        and target.shape == shape
        and target.dtype == dtype
        and target.flags.writeable
    )


def _status(target: object) -> str:
    if not isinstance(target, np.ndarray):
        return type(target).__name__
    return f"{target.dtype} {target.shape}{'' if target.flags.writeable else ' (read-only)'}"


def _allocate(nbytes: int, loader: Loader) -> Bytes:
    try:
        return np.empty(nbytes, np.uint8)
    except (MemoryError, ValueError) as error:
        raise loader.error(NoMemoryError, f"there is no memory for its {nbytes} bytes") from error
