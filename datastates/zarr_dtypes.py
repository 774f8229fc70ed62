"""What teaches zarr-python the data types beyond Zarr's core, over `ml_dtypes`.

In `zarr.json` such an array has the plain name as its `data_type`, as TensorStore writes it; Zarr
v2 has no name for it. A fill value is a number where it is finite, else `"NaN"`, `"Infinity"` or
`"-Infinity"`, and for any other NaN its bits as the specification spells them, `"0x7fc1"`.

From 3.4.1 on zarr-python loads the entry points `zarr.data_type` when it first looks for a type.
3.1.0 to 3.4.0 collect them and never load them, so there `import datastates` registers them. It
simply imports zarr (0.2 s). A hook in `sys.meta_path` that waits for zarr's own import goes wrong
when two threads import the two packages: an import of zarr that is past the finders and not yet in
`sys.modules` never meets the hook; and as the one import now waits for the other, both ways, they
can deadlock, which Python resolves by handing out half a module.

When zarr-python writes, it leaves out a chunk whose elements all *equal* the fill value: nothing
but -0.0 comes back as 0.0, nothing but one NaN perhaps as another. An array created with
`config={"write_empty_chunks": True}` is exact there too.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Never, Self, SupportsFloat, overload

import numpy as np
import zarr  # noqa: F401 - waits for a thread that is importing zarr; its submodules would not
from zarr.core.dtype.common import HasEndianness, HasItemSize
from zarr.dtype import ZDType, data_type_registry

from datastates.dtypes import EXTENSION

try:
    from zarr.errors import DataTypeValidationError  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # zarr before 3.3
    from zarr.dtype import DataTypeValidationError  # type: ignore[no-redef, unused-ignore]

if TYPE_CHECKING:
    from zarr.core.common import JSON, ZarrFormat
    from zarr.core.dtype.common import DTypeJSON

__all__ = [
    "BFloat16",
    "Float8E4M3FN",
    "Float8E4M3FNUZ",
    "Float8E5M2",
    "Float8E5M2FNUZ",
    "Float8E8M0FNU",
    "register",
]


@dataclass(frozen=True, kw_only=True)
class _MLFloat(ZDType[np.dtype[np.generic], np.generic], HasItemSize):
    """All that the types share; a subclass adds its name."""

    _native: ClassVar[np.dtype[np.generic]]

    def __init_subclass__(cls) -> None:
        cls._native = EXTENSION[cls._zarr_v3_name]
        cls.dtype_cls = type(cls._native)

    @property
    def item_size(self) -> int:
        """Bytes per element."""
        return self._native.itemsize

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[np.generic]) -> Self:
        """Return the type that equals `dtype`, or raise `DataTypeValidationError`."""
        if not cls._check_native_dtype(dtype):
            raise DataTypeValidationError(f"{dtype} is not {cls._zarr_v3_name}")
        return cls()

    def to_native_dtype(self) -> np.dtype[np.generic]:
        """Return the `ml_dtypes` equal."""
        return self._native

    @classmethod
    def _from_json_v2(cls, data: DTypeJSON) -> Self:
        cls._require_v3(2)
        return cls()

    @classmethod
    def _from_json_v3(cls, data: DTypeJSON) -> Self:
        if data != cls._zarr_v3_name:
            raise DataTypeValidationError(f"{data!r} is not {cls._zarr_v3_name!r}")
        return cls()

    @overload
    def to_json(self, zarr_format: Literal[2]) -> Never: ...
    @overload
    def to_json(self, zarr_format: Literal[3]) -> str: ...
    def to_json(self, zarr_format: ZarrFormat) -> str:
        """Return the name, or raise `ValueError` for Zarr v2."""
        self._require_v3(zarr_format)
        return self._zarr_v3_name

    @classmethod
    def _require_v3(cls, zarr_format: ZarrFormat) -> None:
        if zarr_format != 3:
            raise DataTypeValidationError(f"{cls._zarr_v3_name} exists in Zarr v3 only")

    def default_scalar(self) -> np.generic:
        """Return the value whose bits are all zero: 0 where the type has one."""
        return self._from_bits(0)

    def _check_scalar(self, data: object) -> bool:
        return isinstance(data, SupportsFloat | str)

    def cast_scalar(self, data: object) -> np.generic:
        """Return `data` as a scalar: its bits if it has this type, else the nearest value.

        Raises `TypeError` for what is neither a number nor a string as in `zarr.json`, and
        `ValueError` for a string that means nothing or a number beyond the type's range.
        """
        if isinstance(data, np.ndarray):
            data = data[()]
        if isinstance(data, self._native.type):
            return data
        if isinstance(data, str):
            return self._from_string(data)
        if isinstance(data, SupportsFloat):
            return self._from_number(float(data))
        raise TypeError(f"{data!r} is not a value for {self._zarr_v3_name}")

    def from_json_scalar(self, data: JSON, *, zarr_format: ZarrFormat) -> np.generic:
        """Return the fill value that `data` spells; raise as `cast_scalar`, and for Zarr v2."""
        self._require_v3(zarr_format)
        if isinstance(data, bool) or not isinstance(data, int | float | str):
            raise TypeError(f"{data!r} is not a fill value for {self._zarr_v3_name}")
        return self.cast_scalar(data)

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> float | str:
        """Return the spelling of `data`, from which every bit comes back."""
        self._require_v3(zarr_format)
        scalar = self.cast_scalar(data)
        number: float = scalar.item()
        if math.isfinite(number):
            return number
        if math.isinf(number):
            return "Infinity" if number > 0 else "-Infinity"
        plain = self._bits(self._native.type(math.nan)) == self._bits(scalar)
        return "NaN" if plain else self._hex(scalar)

    def _hex(self, scalar: np.generic) -> str:
        return f"0x{self._bits(scalar):0{2 * self.item_size}x}"

    def _from_string(self, text: str) -> np.generic:
        if re.fullmatch(f"0x[0-9a-fA-F]{{1,{2 * self.item_size}}}", text):
            return self._from_bits(int(text, 16))
        if text in ("NaN", "Infinity", "-Infinity"):
            return self._from_number(float(text))
        raise ValueError(f"{text!r} is not a value of {self._zarr_v3_name}")

    def _from_number(self, number: float) -> np.generic:
        scalar = self._native.type(number)
        got: float = scalar.item()
        if (math.isnan(got), math.isinf(got)) != (math.isnan(number), math.isinf(number)):
            raise ValueError(f"{number!r} is beyond the range of {self._zarr_v3_name}")
        return scalar

    def _from_bits(self, bits: int) -> np.generic:
        scalar: np.generic = np.array([bits], f"u{self.item_size}").view(self._native)[0]
        return scalar

    def _bits(self, scalar: np.generic) -> int:
        return int(np.array(scalar, self._native).view(f"u{self.item_size}"))


@dataclass(frozen=True, kw_only=True)
class BFloat16(_MLFloat, HasEndianness):
    """The upper half of a float32; the only one of the types that has a byte order."""

    _zarr_v3_name = "bfloat16"

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[np.generic]) -> Self:
        """Return the type that equals `dtype`, or raise `DataTypeValidationError`."""
        super().from_native_dtype(dtype)
        little = dtype.isnative == (sys.byteorder == "little")
        return cls(endianness="little" if little else "big")

    def to_native_dtype(self) -> np.dtype[np.generic]:
        """Return the `ml_dtypes` equal in this byte order."""
        return self._native.newbyteorder(self.endianness)


@dataclass(frozen=True, kw_only=True)
class Float8E4M3FN(_MLFloat):
    """Sign, 4 exponent bits, 3 mantissa bits; no infinities, NaN is 0x7f and 0xff."""

    _zarr_v3_name = "float8_e4m3fn"


@dataclass(frozen=True, kw_only=True)
class Float8E4M3FNUZ(_MLFloat):
    """Sign, 4 exponent bits, 3 mantissa bits; no infinities, no -0, NaN is 0x80."""

    _zarr_v3_name = "float8_e4m3fnuz"


@dataclass(frozen=True, kw_only=True)
class Float8E5M2(_MLFloat):
    """Sign, 5 exponent bits, 2 mantissa bits, all as in IEEE 754: the upper half of a float16."""

    _zarr_v3_name = "float8_e5m2"


@dataclass(frozen=True, kw_only=True)
class Float8E5M2FNUZ(_MLFloat):
    """Sign, 5 exponent bits, 2 mantissa bits; no infinities, no -0, NaN is 0x80."""

    _zarr_v3_name = "float8_e5m2fnuz"


@dataclass(frozen=True, kw_only=True)
class Float8E8M0FNU(_MLFloat):
    """A power of two by its exponent, 2**-127 to 2**127; no sign, no infinities, NaN is 0xff.

    Nor has it a zero: 0 stands for the value whose bits are zero, as in `np.zeros`. Fill values
    are spelled by their bits, as TensorStore (0.1.86) misreads numbers, by a sign and 7 bits.
    """

    _zarr_v3_name = "float8_e8m0fnu"

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> str:
        """Return the bits of `data`, or `"NaN"`."""
        json = super().to_json_scalar(data, zarr_format=zarr_format)
        return "NaN" if json == "NaN" else self._hex(self.cast_scalar(data))

    def _from_number(self, number: float) -> np.generic:
        return super()._from_number(number) if number else self.default_scalar()


def register() -> None:
    """Make zarr-python know the types; harmless where it does, or knows another's of the name.

    zarr's registry has no lock: do not call this while another thread opens or creates arrays.
    """
    for cls in _MLFloat.__subclasses__():
        if cls._zarr_v3_name not in data_type_registry.contents:
            data_type_registry.register(cls._zarr_v3_name, cls)
