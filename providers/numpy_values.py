"""The small values of numpy: scalars and dtypes, and how a dtype is written down."""

from __future__ import annotations

from typing import Any

import numpy as np

from datastates.dtypes import is_core, name_of, numpy_dtype
from datastates.errors import FormatError
from datastates.provider import Finish, Loader, Provider, Saver

_LONG_LONG = ("q", "Q")  # types of their own, which numpy describes as those of a C long


def describe(dtype: np.dtype[Any], saver: Saver) -> Any:
    """Return a dtype as plain data; refuse one that would not come back exactly."""
    if dtype.hasobject:
        raise saver.refuse(f"a numpy dtype of Python objects ({dtype}) has no bytes to store")
    if dtype.metadata:
        raise saver.refuse(f"the numpy dtype {dtype} has metadata, which cannot be stored")
    name = name_of(dtype)
    if name is not None and not is_core(name):
        return ["name", name]  # an ml_dtypes type: numpy itself cannot name it
    if dtype.char in _LONG_LONG and dtype.isnative:
        return ["char", dtype.char]
    described = np.lib.format.dtype_to_descr(dtype)
    try:
        found = np.dtype(np.lib.format.descr_to_dtype(described))
    except TypeError:  # numpy writes the float8_e5m2 of a record as "<f1", which it cannot read
        found = None
    if found is None or found != dtype:
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
        if len(described) > 200:
            raise ValueError("its name is too long")
        return described
    return [
        (
            tuple(f[0]) if isinstance(f[0], list) else f[0],
            _tuples(f[1]),
            *(tuple(shape) for shape in f[2:]),
        )
        for f in described
    ]


def described(data: Any, loader: Loader) -> np.dtype[Any]:
    """Return the dtype that `describe` wrote down."""
    try:
        if data[0] == "name":
            return numpy_dtype(data[1])
        if data[0] == "char" and data[1] in _LONG_LONG:
            return np.dtype(str(data[1]))
        found = np.dtype(np.lib.format.descr_to_dtype(_tuples(data[1])))
    except (ValueError, TypeError, KeyError, IndexError, SyntaxError) as error:
        raise loader.error(FormatError, f"its numpy dtype is malformed: {error}") from error
    if found.hasobject:
        raise loader.error(FormatError, "its numpy dtype holds Python objects")
    return found


def _text(value: Any, dtype: np.dtype[Any]) -> str | bytes:
    if type(value) is not {"U": str, "S": bytes}.get(dtype.kind):
        raise TypeError(f"a scalar of {dtype} is no {type(value).__name__}")
    found: str | bytes = value
    return found


class NumpyValuesProvider(Provider):
    """Takes numpy scalars and `numpy.dtype`."""

    name = "numpy_value"
    priority = -20

    def claims(self, kind: type) -> bool:
        """Any scalar that numpy makes, and the classes of its dtypes."""
        return issubclass(kind, np.generic | np.dtype)

    def split(self, value: Any, saver: Saver) -> Any:
        """See `Provider.split`."""
        if isinstance(value, np.dtype):
            return {"dtype": describe(value, saver)}
        dtype = describe(value.dtype, saver)
        if isinstance(value, np.str_ | np.bytes_):  # numpy's own reading drops zeros at their end
            return {"dtype": dtype, "text": saver.child(value[:])}
        return {"dtype": dtype, "scalar": value.tobytes()}

    def join(self, data: Any, target: Any, loader: Loader) -> Finish:
        """See `Provider.join`."""
        dtype = described(data["dtype"], loader)
        if "text" in data:
            text = loader.child(data["text"], None)
            return lambda: dtype.type(_text(text(), dtype))
        if "scalar" not in data:
            return lambda: dtype
        stored = bytearray(memoryview(data["scalar"]))
        if len(stored) != dtype.itemsize:
            raise loader.error(FormatError, f"a scalar of {dtype} is not {len(stored)} bytes long")
        return lambda: np.frombuffer(stored, dtype)[0]
