"""The values of a step as a person reads them, straight from the manifest's plain data.

Nothing is restored for this: no class is looked up, no provider and no torch imported. So it works
anywhere, on any checkpoint, in the time it takes to read the manifest. What the providers that
ship write is shown as what it stands for; what another one wrote, or what is malformed, as the
plain data that it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from datastates.dtypes import numpy_dtype
from datastates.provider import LeafRef
from datastates.tree import Node, Skeleton

from .output import printable

__all__ = ["Group", "Item", "Opaque", "outline", "shorten", "to_plain"]

_MAX_DEPTH = 100
_MAX_INT_BITS = 256


@dataclass(frozen=True, slots=True)
class Group:
    """A container and what is in it."""

    kind: str
    """`dict`, `list`, `tuple`, or the name of a class or provider."""
    items: tuple[tuple[str, Item], ...]
    keyed: bool
    """False where the labels of the items only count them."""


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value of another type, as text."""

    text: str


Item = Group | Opaque | LeafRef | None | bool | int | float | str | bytes
"""A `LeafRef` is an array of the manifest; the rest are values themselves."""


@dataclass(frozen=True, slots=True)
class _Fields:
    kind: str
    pairs: list[tuple[Skeleton, Skeleton]]


@dataclass(frozen=True, slots=True)
class _Call:
    """Shown as `name(part, part)`."""

    name: str
    parts: list[Skeleton]


@dataclass(frozen=True, slots=True)
class _Sequence:
    kind: str
    parts: list[Skeleton]


def outline(data: Skeleton, depth: int = 0) -> Item:
    """Return what a skeleton stands for. Each part of it is looked at once."""
    depth += 1
    if depth > _MAX_DEPTH:
        return Opaque("…")
    data = _view(data)
    if isinstance(data, _Fields):
        pairs = [(_label(key, depth), outline(item, depth)) for key, item in data.pairs]
        return Group(data.kind, tuple(pairs), True)
    if isinstance(data, _Sequence):
        items = [(str(i), outline(item, depth)) for i, item in enumerate(data.parts)]
        return Group(data.kind, tuple(items), False)
    if isinstance(data, _Call):
        parts = [shorten(outline(part, depth)) for part in data.parts]
        return Opaque(f"{data.name}({', '.join(parts)})")
    known = data is None or isinstance(data, Opaque | LeafRef | bool | int | float | str | bytes)
    return data if known else Opaque(type(data).__name__)


def _label(key: Skeleton, depth: int) -> str:
    return printable(key) if isinstance(key, str) else shorten(outline(key, depth))


def _view(data: Skeleton) -> Any:
    """Return one level of a skeleton as `_Fields`, `_Sequence`, `_Call` or a value."""
    while isinstance(data, Node):
        try:
            data = _VIEWS[data.provider](data.data) if data.provider in _VIEWS else _plain(data)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            data = _plain(data)
    if isinstance(data, list):
        return _Sequence("list", data)
    return _Fields("dict", list(data.items())) if isinstance(data, dict) else data


def _plain(node: Node) -> _Fields | _Sequence:
    if isinstance(node.data, dict):
        return _Fields(node.provider, list(node.data.items()))
    return _Sequence(node.provider, node.data if isinstance(node.data, list) else [node.data])


def _fields(kind: str, pairs: list[Any]) -> _Fields:
    return _Fields(kind, [(key, value) for key, value in pairs])


def _sequence(kind: str, parts: list[Any]) -> _Sequence:
    return _Sequence(kind, list(parts))


def _object(data: Any) -> _Fields:
    return _fields(".".join(data["class"]), data["fields"])


def _numpy_value(data: Any) -> Opaque:
    how, name = data["dtype"]
    dtype = numpy_dtype(name) if how == "name" else np.dtype(name)
    return Opaque(repr(np.frombuffer(data["scalar"], dtype)[0] if "scalar" in data else dtype))


def _objects(data: Any) -> _Call | Opaque:
    kind, *rest = data
    if kind == "enum":
        return Opaque(f"{'.'.join(rest[0])}.{rest[1] or rest[2]}")
    if kind == "singleton":
        return Opaque(str(rest[0]))
    if kind == "pickle":
        return Opaque("a pickle")
    parts = [part for item in rest for part in (item if isinstance(item, list) else [item])]
    return _Call(str(kind), parts)


def _torch(data: Any) -> _Call | Opaque:
    kind, value = data
    return Opaque(f"torch.{value}") if kind == "name" else _Call(f"torch.{kind}", [value])


_VIEWS: dict[str, Callable[[Any], Any]] = {
    **{name: partial(_fields, name) for name in ("dict", "Counter")},
    **{name: partial(_sequence, name) for name in ("tuple", "set", "frozenset")},
    **dict.fromkeys(("dataclass", "namespace", "namedtuple"), _object),
    **dict.fromkeys(("bytes", "str", "packed"), lambda data: data),
    **dict.fromkeys(("tensor", "numpy"), lambda data: data["array"]),
    **dict.fromkeys(("stateful", "rng"), lambda data: data["state"]),
    "OrderedDict": lambda data: _fields("OrderedDict", data["items"]),
    "defaultdict": lambda data: _fields("defaultdict", data["items"]),
    "deque": lambda data: _sequence("deque", data["items"]),
    "numpy_value": _numpy_value,
    "objects": _objects,
    "torch": _torch,
}

_BRACKETS = {"list": ("[", "]"), "tuple": ("(", ")"), "set": ("{", "}"), "dict": ("{", "}")}


def shorten(item: Item, limit: int = 60) -> str:
    """Return a value in one line of about `limit` characters; the middle is left out."""
    if isinstance(item, Opaque):
        text = printable(item.text)
    elif isinstance(item, Group):
        text = _in_one_line(item, limit)
    elif isinstance(item, LeafRef):
        text = "an array"
    elif isinstance(item, int) and item.bit_length() > _MAX_INT_BITS:
        return f"{hex(item)[:20]}… ({item.bit_length():,} bits)"
    elif isinstance(item, str | bytes) and len(item) > limit:
        unit = "bytes" if isinstance(item, bytes) else "characters"
        return f"{item[: limit - 20]!r}… ({len(item):,} {unit})"
    else:
        text = repr(item)
    return text if len(text) <= limit else f"{text[: limit - 20]}…{text[-15:]}"


def _in_one_line(group: Group, limit: int) -> str:
    few: list[str] = []
    for label, item in group.items:
        if sum(len(one) + 2 for one in few) > limit - 30:
            few.append(f"… {len(group.items) - len(few):,} more")
            break
        few.append(f"{label}: {shorten(item)}" if group.keyed else shorten(item))
    left, right = _BRACKETS.get(group.kind, ("(", ")"))
    return f"{'' if group.kind in _BRACKETS else group.kind}{left}{', '.join(few)}{right}"


def to_plain(item: Item, arrays: Callable[[LeafRef], object]) -> object:
    """Return a value as JSON can hold it; `arrays` says what stands for an array."""
    if isinstance(item, LeafRef):
        return arrays(item)
    if isinstance(item, Opaque):
        return item.text
    if isinstance(item, bytes) or (isinstance(item, int) and item.bit_length() > _MAX_INT_BITS):
        return shorten(item)
    if not isinstance(item, Group):
        return item
    values = [to_plain(value, arrays) for _, value in item.items]
    labels = [label for label, _ in item.items]
    if not item.keyed:
        return values
    if len(set(labels)) < len(labels):  # 0 and "0" look alike
        return [list(pair) for pair in zip(labels, values, strict=True)]
    return dict(zip(labels, values, strict=True))
