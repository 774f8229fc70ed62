"""The values of a step as a person reads them, straight from the manifest's plain data.

Nothing is restored for this: no class is looked up, no provider and no torch imported. So it works
anywhere, on any checkpoint, in the time it takes to read the manifest. What our own providers
write is shown as what it stands for; what another one wrote, or what is malformed, as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
"""A `LeafRef` is an array of the manifest; the rest of them are values themselves."""


def outline(data: Skeleton, depth: int = 0) -> Item:
    """Return what a skeleton stands for."""
    if depth > _MAX_DEPTH:
        return Opaque("…")
    if isinstance(data, list):
        return _sequence("list", data, depth)
    if isinstance(data, dict):
        return _fields("dict", data.items(), depth)
    if not isinstance(data, Node):
        return data  # type: ignore[no-any-return]
    view = _VIEWS.get(data.provider, _generic)
    try:
        return view(data, depth)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        return _generic(data, depth)


def _sequence(kind: str, data: Iterable[Skeleton], depth: int) -> Group:
    items = ((str(i), outline(item, depth + 1)) for i, item in enumerate(data))
    return Group(kind, tuple(items), False)


def _fields(kind: str, pairs: Iterable[Any], depth: int) -> Group:
    items = ((_label(key), outline(item, depth + 1)) for key, item in pairs)
    return Group(kind, tuple(items), True)


def _label(key: Skeleton) -> str:
    return printable(key) if isinstance(key, str) else shorten(outline(key))


def _generic(node: Node, depth: int) -> Item:
    data = node.data
    if isinstance(data, dict):
        return _fields(node.provider, data.items(), depth)
    return _sequence(node.provider, data if isinstance(data, list) else [data], depth)


def _object(node: Node, depth: int) -> Item:
    return _fields(".".join(node.data["class"]), node.data["fields"], depth)


def _array(node: Node, depth: int) -> Item:
    return node.data["array"] if "array" in node.data else _generic(node, depth)


def _numpy(node: Node, depth: int) -> Item:
    if "scalar" not in node.data:
        return _array(node, depth)
    how, name = node.data["dtype"]
    dtype = numpy_dtype(name) if how == "name" else np.dtype(name)
    return Opaque(repr(np.frombuffer(node.data["scalar"], dtype)[0]))


def _objects(node: Node, depth: int) -> Item:
    kind, *rest = node.data
    if kind == "enum":
        (module, name), member, value = rest
        return Opaque(f"{module}.{name}.{member}" if member else f"{module}.{name}({value})")
    if kind == "pickle":
        return Opaque("a pickle")
    if kind == "singleton":
        return Opaque(str(rest[0]))
    found = outline(rest[0] if len(rest) == 1 else rest, depth + 1)
    return Opaque(f"{kind}({shorten(found).strip('[]')})")


def _torch(node: Node, depth: int) -> Item:
    kind, value = node.data
    if kind == "size":
        return Opaque(f"torch.Size({value})")
    return Opaque(f"torch.device({value!r})" if kind == "device" else f"torch.{value}")


_VIEWS: dict[str, Callable[[Node, int], Item]] = {
    **dict.fromkeys(
        ("dict", "OrderedDict", "Counter"), lambda n, depth: _fields(n.provider, n.data, depth)
    ),
    **dict.fromkeys(
        ("tuple", "set", "frozenset"), lambda n, depth: _sequence(n.provider, n.data, depth)
    ),
    **dict.fromkeys(("dataclass", "namespace", "namedtuple"), _object),
    **dict.fromkeys(("bytes", "str", "packed"), lambda n, depth: n.data),
    "deque": lambda n, depth: _sequence("deque", n.data["items"], depth),
    "defaultdict": lambda n, depth: _fields("defaultdict", n.data["items"], depth),
    "numpy": _numpy,
    "objects": _objects,
    "rng": lambda n, depth: outline(n.data["state"], depth),
    "stateful": lambda n, depth: outline(n.data["state"], depth),
    "tensor": _array,
    "torch": _torch,
}

_BRACKETS = {"list": "[]", "tuple": "()", "set": "{}", "dict": "{}"}


def shorten(item: Item, limit: int = 60) -> str:
    """Return a value in one line of about `limit` characters; the middle is left out."""
    if isinstance(item, Opaque):
        text = printable(item.text)
    elif isinstance(item, Group):
        text = _in_one_line(item)
    elif isinstance(item, LeafRef):
        text = "an array"
    elif isinstance(item, int) and item.bit_length() > _MAX_INT_BITS:
        return f"{hex(item)[:20]}… ({item.bit_length():,} bits)"
    elif isinstance(item, str | bytes) and len(item) > limit:
        return f"{item[: limit - 20]!r}… ({len(item):,} {'bytes' if isinstance(item, bytes) else 'characters'})"
    else:
        text = repr(item)
    return text if len(text) <= limit else f"{text[: limit - 20]}…{text[-15:]}"


def _in_one_line(group: Group) -> str:
    few = [
        f"{label}: {shorten(item)}" if group.keyed else shorten(item)
        for label, item in group.items[:8]
    ]
    more = len(group.items) - len(few)
    left, right = _BRACKETS.get(group.kind, "()")
    name = "" if group.kind in _BRACKETS else group.kind
    return f"{name}{left}{', '.join(few)}{f', … {more:,} more' if more else ''}{right}"


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
