"""The data types an array can have on disk, by their Zarr names.

Core names are in the Zarr v3 specification and every reader knows them. The others carry the name
under which TensorStore reads them; `datastates.zarr_dtypes` teaches them to zarr-python.
`float8_e4m3fn` is TensorStore's name and is not in the zarr-extensions registry; it is never
written as `float8_e4m3`, which is another format.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

__all__ = ["CORE", "EXTENSION", "ITEMSIZE", "is_core", "name_of", "numpy_dtype"]

CORE: dict[str, np.dtype[np.generic]] = {
    name: np.dtype(name)
    for name in (
        "bool",
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
"""Zarr's own data types and their numpy equals (little-endian on disk)."""

EXTENSION: dict[str, np.dtype[np.generic]] = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in (
        "bfloat16",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    )
}
"""Data types beyond the specification's core, with their `ml_dtypes` equals."""

_ALL = CORE | EXTENSION
_NAMES = {dtype: name for name, dtype in _ALL.items()}

ITEMSIZE: dict[str, int] = {name: dtype.itemsize for name, dtype in _ALL.items()}
"""Bytes per element, by name; also the list of all names that an image may contain."""


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """Return the numpy (or `ml_dtypes`) type called `name`.

    Raises:
        KeyError: `name` is not a data type of the format.
    """
    return _ALL[name]


def name_of(dtype: np.dtype[np.generic]) -> str | None:
    """Return the name of a native-endian numpy type, or None where the format has none."""
    return _NAMES.get(dtype) if dtype.isnative else None


def is_core(name: str) -> bool:
    """Tell whether any Zarr v3 reader knows the data type `name`."""
    return name in CORE
