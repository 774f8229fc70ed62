"""Python's own values beyond the plain ones, and pickles where they are asked for.

Each comes back with its own type and value. Classes of enums are named and looked up among the
modules already loaded (see `datastates.classes`).
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import pathlib
import pickle
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any

from datastates.classes import class_name, find_class
from datastates.errors import FormatError, UnknownClassError, UntrustedError
from datastates.provider import Finish, Loader, Provider, Saver
from datastates.values import Pickled

_PATHS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath),
    )
}
_HERE: dict[str, type] = {
    kind.__name__: kind if kind is type(pathlib.Path()) else kind.__bases__[-1]
    for kind in (pathlib.PosixPath, pathlib.WindowsPath)
}
"""What another system's own paths come back as: pure ones."""

_MAX_FRACTION_BITS = 1 << 17

_SINGLETONS: dict[str, object] = {"Ellipsis": ..., "NotImplemented": NotImplemented}


def _ints(value: Any, count: int) -> list[int]:
    if not isinstance(value, list) or len(value) != count:
        raise ValueError(f"{count} numbers expected")
    if not all(type(n) is int for n in value):
        raise TypeError("numbers expected")
    return value


def _narrow(numbers: list[int]) -> list[int]:
    """Refuse numbers so wide that reducing their fraction would take seconds."""
    if max(n.bit_length() for n in numbers) > _MAX_FRACTION_BITS:
        raise ValueError(f"numbers of at most {_MAX_FRACTION_BITS} bits expected")
    return numbers


def _datetime_fields(value: dt.datetime | dt.time) -> list[int]:
    if isinstance(value, dt.datetime):
        return [value.year, value.month, value.day, *_time_fields(value)]
    return _time_fields(value)


def _time_fields(value: dt.datetime | dt.time) -> list[int]:
    return [value.hour, value.minute, value.second, value.microsecond, value.fold]


def _time(kind: Callable[..., Any], fields: list[int], zone: dt.tzinfo | None) -> Any:
    return kind(*fields[:-1], zone, fold=fields[-1])


def _timezone(data: Any) -> dt.timezone:
    offset = dt.timedelta(*_ints(data[0], 3))
    return dt.timezone(offset) if data[1] is None else dt.timezone(offset, str(data[1]))


def _offset(value: dt.timezone) -> list[Any]:
    offset = value.utcoffset(None)
    given = value.__getinitargs__()  # type: ignore[attr-defined]
    return [[offset.days, offset.seconds, offset.microseconds], given[1] if given[1:] else None]


# How each type is written as plain data, and read back. One line a type.
_WRITE: dict[type, Callable[[Any], Any]] = {
    complex: lambda v: [v.real, v.imag],
    bytearray: bytes,
    range: lambda v: [v.start, v.stop, v.step],
    dt.date: lambda v: v.toordinal(),
    dt.timedelta: lambda v: [v.days, v.seconds, v.microseconds],
    dt.timezone: _offset,
    zoneinfo.ZoneInfo: lambda v: v.key,
    decimal.Decimal: lambda v: [
        v.as_tuple().sign,
        list(v.as_tuple().digits),
        v.as_tuple().exponent,
    ],
    fractions.Fraction: lambda v: _narrow([v.numerator, v.denominator]),
    uuid.UUID: lambda v: v.bytes,
    **dict.fromkeys(_PATHS.values(), str),
}
_READ: dict[str, Callable[[Any], Any]] = {
    "complex": lambda d: complex(float(d[0]), float(d[1])),
    "bytearray": lambda d: bytearray(memoryview(d)),
    "range": lambda d: range(*_ints(d, 3)),
    "date": dt.date.fromordinal,
    "timedelta": lambda d: dt.timedelta(*_ints(d, 3)),
    "timezone": _timezone,
    "ZoneInfo": lambda d: zoneinfo.ZoneInfo(str(d)),
    "Decimal": lambda d: decimal.Decimal((d[0], tuple(d[1]), d[2])),
    "Fraction": lambda d: fractions.Fraction(*_narrow(_ints(d, 2))),
    "UUID": lambda d: uuid.UUID(bytes=bytes(memoryview(d))),
    "singleton": lambda d: _SINGLETONS[d],
    **(_PATHS | _HERE),
}


class ObjectsProvider(Provider):
    """Takes complex, bytearray, slice, dates, paths, enums, decimals, UUIDs, and `Pickled`."""

    name = "objects"
    priority = -40

    def claims(self, kind: type) -> bool:
        """The types of `_WRITE`, and those with a shape of their own."""
        special = (slice, type(...), type(NotImplemented), dt.datetime, dt.time, Pickled)
        return kind in _WRITE or kind in special or issubclass(kind, enum.Enum)

    def split(self, value: Any, saver: Saver) -> Any:
        """See `Provider.split`."""
        kind = type(value)
        if kind is zoneinfo.ZoneInfo and value.key is None:
            raise saver.refuse("a ZoneInfo without a key cannot be found again")
        if kind in _WRITE:
            return [kind.__name__, saver.child(self._write(value, saver))]
        if isinstance(value, enum.Enum):
            return ["enum", *self._enum(value, saver)]
        if kind is slice:
            return ["slice", [saver.child(v) for v in (value.start, value.stop, value.step)]]
        if isinstance(value, dt.datetime | dt.time):
            return [kind.__name__, _datetime_fields(value), saver.child(value.tzinfo)]
        if isinstance(value, Pickled):
            return ["pickle", self._pickle(value.value, saver)]
        return ["singleton", "Ellipsis" if value is ... else "NotImplemented"]

    def _write(self, value: Any, saver: Saver) -> Any:
        try:
            return _WRITE[type(value)](value)
        except ValueError as error:
            raise saver.refuse(str(error)) from error

    def _enum(self, value: enum.Enum, saver: Saver) -> list[Any]:
        named = class_name(type(value), saver)
        if type(value).__members__.get(str(value.name)) is value:
            return [named, value.name, None]
        if isinstance(value, enum.Flag):
            return [named, None, int(value.value)]
        raise saver.refuse(f"{value!r} is not a named member of its enum")

    def _pickle(self, value: object, saver: Saver) -> Any:
        try:
            return saver.child(pickle.dumps(value, protocol=5))
        except Exception as error:  # whatever a __reduce__ of the user's raises
            raise saver.refuse(f"it cannot be pickled: {error}") from error

    def join(self, data: Any, target: Any, loader: Loader) -> Finish:
        """See `Provider.join`."""
        kind = data[0]
        if kind == "enum":
            member = self._find_enum(data, loader)
            return lambda: member
        if kind == "pickle":
            return self._unpickle(data[1], loader)
        if kind == "slice":
            start, stop, step = (loader.child(item, None) for item in data[1])
            return lambda: slice(start(), stop(), step())
        if kind in ("datetime", "time"):
            make, fields = getattr(dt, kind), _ints(data[1], 8 if kind == "datetime" else 5)
            zone = loader.child(data[2], None)
            return lambda: _time(make, fields, zone())
        read, value = _READ[kind], loader.child(data[1], None)
        return lambda: self._read(read, value(), kind, loader)

    def _read(self, read: Callable[[Any], Any], data: Any, kind: str, loader: Loader) -> Any:
        try:
            return read(data)
        except Exception as error:  # zoneinfo alone has errors of many kinds
            raise loader.error(FormatError, f"cannot make a {kind}: {error}") from error

    def _find_enum(self, data: Any, loader: Loader) -> Any:
        kind: Any = find_class(data[1], loader, lambda k: issubclass(k, enum.Enum))
        try:
            if data[2] is None and issubclass(kind, enum.Flag) and type(data[3]) is int:
                return kind(data[3])
            return kind.__members__[data[2]]
        except (KeyError, ValueError) as error:
            reason = f"the enum {kind.__qualname__} has no member {data[2] or data[3]!r} here"
            raise loader.error(UnknownClassError, reason) from error

    def _unpickle(self, data: Any, loader: Loader) -> Finish:
        if not loader.trusted:
            raise loader.error(
                UntrustedError,
                "it is a pickle, and reading one runs code that the file names; "
                "restore(trust=True) allows it for files that you trust",
            )
        value = loader.child(data, None)
        return lambda: self._unpickled(value(), loader)

    def _unpickled(self, data: Any, loader: Loader) -> Any:
        try:
            return pickle.loads(data)
        except Exception as error:  # it is code: it may raise anything
            reason = f"its pickle cannot be read here: {error!r}"
            raise loader.error(UnknownClassError, reason) from error
