"""A state tree taken apart: skeleton (plain data) and leaves (arrays).

The skeleton is a tree of None, bool, int, float, str, bytes, list, str-keyed dict, `Node` (made
by a provider, and put together by it again) and `LeafRef`. It packs to one msgpack document in
one pass: a `Node` is the map `{"$": provider, "v": data}`, and a dict that has a key `$` of its
own is a `Node` too. There is no recursion that a state can drive too deep, and no key is ever
joined into a string.

Large containers of plain values are packed in one go and stored as arrays of bytes, as are
long strings and bytes: so they are checksummed, cut into pieces and read like any other array,
and no msgpack length limit is ever near.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from .documents import unpack_bounded
from .errors import FormatError, NestingError, UnsupportedValueError
from .names import Path, readable
from .provider import ArrayLeaf, Bytes, LeafRef
from .registry import Providers

__all__ = [
    "LONG_VALUES",
    "MAX_CONTAINERS",
    "MAX_DEPTH",
    "PLAIN",
    "Flat",
    "Node",
    "Skeleton",
    "contains_leaf",
    "flatten",
    "is_long",
    "pack",
    "unpack",
    "unpack_plain",
]

Skeleton = Any
"""Plain data, see the module's first paragraph."""

MAX_DEPTH = 64
"""Containers inside containers; deeper states are refused with their path."""

MAX_CONTAINERS = 1 << 19
"""Lists and dicts in a skeleton, those of nodes included: what reading one takes is bounded."""

LONG_VALUES = frozenset({"bytes", "str", "packed"})
"""Nodes that the tree itself makes of values too long for the skeleton."""

PLAIN = frozenset({type(None), bool, int, float, str})
"""Types of values that go into the skeleton as they are."""

_OWN_ARRAY_ITEMS = 4096
_OWN_ARRAY_NBYTES = 65536
_MAX_PACKED_TEXT = 1 << 29  # characters of four bytes at most; msgpack's limit is 4 GiB


@dataclass(frozen=True, slots=True)
class Node:
    """An object that a provider took apart."""

    provider: str
    data: Skeleton


@dataclass(frozen=True, slots=True)
class Flat:
    """A state, taken apart."""

    skeleton: Skeleton
    leaves: list[tuple[Path, ArrayLeaf]]
    """In tree order; a `LeafRef` counts into this list."""


class BytesSource:
    """The bytes of an object that lies in memory in one piece."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._bytes: Bytes = np.frombuffer(data, np.uint8)

    def read(self, start: int, out: Bytes) -> None:
        """Copy `[start, start + len(out))` into `out`."""
        np.copyto(out, self._bytes[start : start + len(out)])


def _bytes_leaf(data: bytes | bytearray) -> ArrayLeaf:
    return ArrayLeaf("uint8", (len(data),), BytesSource(data))


class _Flattener:
    """Walks one state; the `Saver` of each provider is this with the path where it stands."""

    def __init__(self, providers: Providers) -> None:
        self._providers = providers
        self._path: Path = ()
        self._open: set[int] = set()
        self.leaves: list[tuple[Path, ArrayLeaf]] = []

    def array(self, leaf: ArrayLeaf, *keys: Hashable) -> LeafRef:
        self.leaves.append((self._path + keys, leaf))
        return LeafRef(len(self.leaves) - 1)

    def refuse(self, reason: str) -> UnsupportedValueError:
        key = readable(self._path)
        return UnsupportedValueError(f"cannot save {key}: {reason}", key=key)

    def child(self, value: Any, *keys: Hashable) -> Skeleton:
        kind = type(value)
        if kind in PLAIN and (kind is not str or len(value) < _OWN_ARRAY_NBYTES):
            return value
        parent, self._path = self._path, self._path + keys
        try:
            return self._walk(value, kind)
        finally:
            self._path = parent

    def _walk(self, value: Any, kind: type) -> Skeleton:
        if kind is bytes or kind is str:
            return self._text_or_bytes(value)
        if id(value) in self._open or len(self._open) >= MAX_DEPTH:
            raise self._nesting(value)
        self._open.add(id(value))
        try:
            if kind is list:
                return self._list(value)
            if kind is dict and "$" not in value and set(map(type, value)) <= {str}:
                return self._dict(value)
            provider = self._providers.for_type(kind)
            if provider is None:
                raise self.refuse(_no_provider(kind))
            return Node(provider.name, provider.split(value, self))
        finally:
            self._open.discard(id(value))

    def _nesting(self, value: object) -> NestingError:
        key = readable(self._path)
        why = "contains itself" if id(value) in self._open else f"nests over {MAX_DEPTH} deep"
        return NestingError(f"cannot save {key}: the {type(value).__name__} {why}", key=key)

    def _text_or_bytes(self, value: str | bytes) -> Skeleton:
        if isinstance(value, bytes):
            if len(value) < _OWN_ARRAY_NBYTES:
                return value
            return Node("bytes", self.array(_bytes_leaf(value)))
        return Node("str", self.array(_bytes_leaf(value.encode("utf-8", "surrogatepass"))))

    def _list(self, value: list[Any]) -> Skeleton:
        if len(value) > 16 and _is_plain(value):
            return self._plain(value)
        return [self.child(item, i) for i, item in enumerate(value)]

    def _dict(self, value: dict[str, Any]) -> Skeleton:
        if len(value) > 16 and _is_plain(value.values()):
            return self._plain(value)
        return {key: self.child(item, key) for key, item in value.items()}

    def _plain(self, value: list[Any] | dict[str, Any]) -> Skeleton:
        if len(value) < _OWN_ARRAY_ITEMS and _text_length(value) < _OWN_ARRAY_NBYTES:
            return list(value) if isinstance(value, list) else dict(value)
        return Node("packed", self.array(_bytes_leaf(pack(value))))


def _is_plain(values: Collection[Any]) -> bool:
    """Tell whether values can be packed in one piece."""
    kinds = set(map(type, values))
    if str not in kinds or not kinds <= PLAIN:
        return kinds <= PLAIN
    return all(type(v) is not str or len(v) < _MAX_PACKED_TEXT for v in values)


def is_long(values: Collection[Any]) -> bool:
    """Tell whether values, as a list, are packed in one piece and stored as an array of bytes."""
    return len(values) >= _OWN_ARRAY_ITEMS and _is_plain(values)


def _text_length(value: list[Any] | dict[str, Any]) -> int:
    texts = [*value, *value.values()] if isinstance(value, dict) else value
    return sum(len(text) for text in texts if type(text) is str)


def _no_provider(kind: type) -> str:
    name = f"{kind.__module__}.{kind.__qualname__}"
    return (
        f"no provider takes objects of type {name}. Convert it to plain values, give it "
        "state_dict() and load_state_dict(), register a provider, or wrap it in ds.Pickled(...)"
    )


def flatten(state: object, providers: Providers) -> Flat:
    """Take `state` apart. Pure: nothing is copied, arrays are only looked at.

    Raises:
        StateError: something in it cannot be stored exactly; the error names its path.
    """
    walker = _Flattener(providers)
    try:
        return Flat(walker.child(state), walker.leaves)
    except RecursionError as error:
        key = readable(walker._path)
        raise NestingError(f"cannot save {key}: the stack is too deep here", key=key) from error


def contains_leaf(data: Skeleton, *, long_values: bool = False) -> bool:
    """Tell whether there is array data anywhere in plain data; a long plain value is none."""
    left = [data]
    while left:
        item = left.pop()
        if type(item) is LeafRef:
            return True
        if type(item) is Node and (long_values or item.provider not in LONG_VALUES):
            left.append(item.data)
        elif type(item) is list:
            left.extend(item)
        elif type(item) is dict:
            left.extend(item.values())
    return False


def _default(value: object) -> object:
    if type(value) is Node:
        return {"$": value.provider, "v": value.data}
    if type(value) is LeafRef:
        return {"$": "", "v": value.index}
    if type(value) is int:  # wider than 64 bits; hex has no limit on digits
        return {"$": "int", "v": hex(value)}
    raise TypeError(f"{type(value).__name__} is not plain data")


def pack(skeleton: Skeleton) -> bytes:
    """Return the msgpack document of plain data."""
    packed: bytes = msgpack.packb(
        skeleton, default=_default, strict_types=True, unicode_errors="surrogatepass"
    )
    return packed


def _hook(value: dict[str, Any]) -> object:
    if "$" not in value:
        return value
    if set(value) != {"$", "v"} or not isinstance(value["$"], str):
        raise FormatError("a node of the skeleton is malformed")
    if value["$"] == "":
        if type(value["v"]) is not int or value["v"] < 0:
            raise FormatError("an array reference of the skeleton is malformed")
        return LeafRef(value["v"])
    if value["$"] == "int":
        return int(value["v"], 16)
    return Node(value["$"], value["v"])


def unpack(packed: bytes | bytearray | memoryview) -> Skeleton:
    """Return the plain data of a msgpack document; runs no code of anyone else.

    Raises:
        FormatError: it is not such a document.
    """
    return unpack_bounded(packed, _hook, MAX_CONTAINERS)


def unpack_plain(packed: bytes | bytearray | memoryview) -> list[Any] | dict[str, Any]:
    """Return a long list or dict of plain values.

    Raises:
        FormatError: it is none.
    """
    found = unpack_bounded(packed, _hook, 1)
    values = found.values() if type(found) is dict else found
    if not isinstance(found, list | dict) or not PLAIN.issuperset(map(type, values)):
        raise FormatError("the document is no list or dict of plain values")
    return found
