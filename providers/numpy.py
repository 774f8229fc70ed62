"""Numpy arrays, scalars and dtypes: same bits, same dtype, same memory order.

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
from datastates.errors import FormatError
from datastates.provider import ArrayLeaf, Bytes, Finish, LeafRef, Loader, Memory, Provider, Saver
from datastates.sources import ArraySink, ArraySource, bytes_of

Array = npt.NDArray[Any]


def _describe(dtype: np.dtype[Any], saver: Saver) -> Any:
    if dtype.hasobject:
        raise saver.refuse(f"a numpy dtype of Python objects ({dtype}) has no bytes to store")
    if dtype.kind == "V" and dtype.names is None and name_of(dtype):
        return ["name", str(name_of(dtype))]  # an ml_dtypes type: numpy itself cannot name it
    described = np.lib.format.dtype_to_descr(dtype)
    if np.dtype(np.lib.format.descr_to_dtype(described)) != dtype:
        raise saver.refuse(f"the numpy dtype {dtype} cannot be written down exactly")
    return ["descr", _plain(described)]


def _plain(described: Any) -> Any:
    """Turn numpy's tuples into lists, which is what plain data has."""
    if isinstance(described, list | tuple):
        return [_plain(item) for item in described]
    return described


def _tuples(described: Any) -> Any:
    """Undo `_plain`: fields are a list of tuples (name, type[, shape])."""
    if isinstance(described, str):
        return described
    return [
        (
            tuple(f[0]) if isinstance(f[0], list) else f[0],
            _tuples(f[1]),
            *(tuple(shape) for shape in f[2:]),
        )
        for f in described
    ]


def _dtype(data: Any, loader: Loader) -> np.dtype[Any]:
    try:
        if data[0] == "name":
            return numpy_dtype(data[1])
        found = np.dtype(np.lib.format.descr_to_dtype(_tuples(data[1])))
    except (ValueError, TypeError, KeyError, IndexError, SyntaxError) as error:
        raise loader.error(FormatError, f"its numpy dtype is malformed: {error}") from error
    if found.hasobject:
        raise loader.error(FormatError, "its numpy dtype holds Python objects")
    return found


def _memory(array: Array) -> Memory | None:
    """Where an array lies; only those in C order are tied to others, as slices of one memory."""
    if not (array.flags.c_contiguous and array.size):
        return None
    low, high = np.lib.array_utils.byte_bounds(array)
    strides = tuple(s // array.itemsize for s in array.strides)
    return Memory("numpy", low, high, strides, True)


def _as_stored(array: Array) -> tuple[str, Array]:
    """Return the Zarr data type and the array in it; the bytes of its elements where none fits."""
    native = array.dtype.newbyteorder("=") if array.dtype.kind not in "VSU" else array.dtype
    name = name_of(native)
    if name is not None:
        return name, array.astype(native, copy=False)
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return "uint8", raw.reshape(*array.shape, array.dtype.itemsize)


class NumpyProvider(Provider):
    """Takes `numpy.ndarray`, numpy scalars and `numpy.dtype`."""

    name = "numpy"
    priority = -20
    in_place = True

    def claims(self, kind: type) -> bool:
        """Exactly arrays and scalars; subclasses of ndarray have state of their own."""
        return kind is np.ndarray or issubclass(kind, np.generic)

    def split(self, value: Any, saver: Saver) -> Any:
        """See `Provider.split`."""
        dtype = _describe(value.dtype, saver)
        if isinstance(value, np.generic):
            return {"dtype": dtype, "scalar": value.tobytes()}
        if value.dtype.itemsize == 0:
            raise saver.refuse(f"arrays of the empty numpy dtype {value.dtype} have no bytes")
        zarr_name, stored = _as_stored(value)
        memory = _memory(value) if stored is value else None
        leaf = ArrayLeaf(zarr_name, stored.shape, ArraySource(stored), memory)
        order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        return {"dtype": dtype, "array": saver.array(leaf), "order": order}

    def join(self, data: Any, target: Any, loader: Loader) -> Finish:
        """See `Provider.join`."""
        dtype = _dtype(data["dtype"], loader)
        if "scalar" in data:
            scalar = np.frombuffer(data["scalar"], dtype)[0]
            return lambda: scalar
        name, shape = loader.describe(data["array"])
        if name == "uint8" and dtype != np.uint8:
            return self._join_bytes(data, shape, dtype, target, loader)
        if dtype.itemsize != numpy_dtype(name).itemsize:
            raise loader.error(FormatError, f"its dtype {dtype} is stored as {name}")
        array = self._target(target, shape, dtype, loader)
        if array is None:
            array = self._make(data, shape, dtype, loader)
        elif not _fits(array, shape, dtype):
            return lambda: target
        loader.read(
            data["array"], bytes_of(array) if array.flags.c_contiguous else ArraySink(array)
        )
        return lambda: array if dtype.isnative else array.byteswap(inplace=True)

    def _join_bytes(
        self,
        data: Any,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        target: Any,
        loader: Loader,
    ) -> Finish:
        """Elements that Zarr has no type for: the last dimension is their bytes."""
        if not shape or shape[-1] != dtype.itemsize:
            raise loader.error(FormatError, f"its dtype {dtype} is stored as {shape} bytes")
        array = self._target(target, shape[:-1], dtype, loader)
        if array is not None and not _fits(array, shape[:-1], dtype):
            return lambda: target
        raw = _allocate(prod(shape), loader)
        loader.read(data["array"], raw)

        def finish() -> Array:
            made = raw.view(dtype).reshape(shape[:-1])
            if array is not None:
                array[...] = made
                return array
            return np.asfortranarray(made) if data["order"] == "F" else made

        return finish

    def _target(
        self, target: object, shape: tuple[int, ...], dtype: np.dtype[Any], loader: Loader
    ) -> Array | None:
        """Return the target to fill, or None to make a new array; report one that does not fit."""
        fits = _fits(target, shape, dtype)
        if target is None or (loader.adopting and not fits):
            return None
        if not fits:
            loader.mismatch(f"{_status(target)} here, {dtype} {shape} stored")
        return target if isinstance(target, np.ndarray) else None

    def _make(
        self,
        data: Any,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        loader: Loader,
    ) -> Array:
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
        raise loader.error(MemoryError, f"there is no memory for its {nbytes} bytes") from error
