"""The containers and long values of Python, as providers of the core itself.

Everything comes back with its own type: a tuple as a tuple, a `defaultdict` with its factory.
Instances of the user's classes are in `classes`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Hashable
from typing import Any, ClassVar

import numpy as np

from .classes import CLASSES
from .errors import FormatError
from .provider import Bytes, Finish, LeafRef, Loader, Provider, Saver
from .tree import Node, contains_leaf, is_long, unpack_plain

__all__ = ["CONTAINERS"]

_FACTORIES: dict[str, type] = {
    t.__name__: t for t in (list, dict, set, tuple, int, float, str, bytes, bool, complex, deque)
}


class _Container(Provider):
    """Shared: claims exactly one type, and finishes children in order."""

    priority = -10
    kind: ClassVar[type]

    def claims(self, kind: type) -> bool:
        return kind is self.kind


def _items(value: Collection[Any], saver: Saver) -> Any:
    if is_long(value):
        return saver.child(list(value))
    return [saver.child(item, i) for i, item in enumerate(value)]


def _targets(target: object, kind: type, count: int) -> list[Any]:
    ordered = kind is not set and kind is not frozenset
    if ordered and type(target) is kind and len(target) == count:  # type: ignore[arg-type]
        return list(target)  # type: ignore[call-overload, no-any-return]
    return [None] * count


def _load_items(data: Any, target: object, kind: type, loader: Loader) -> Finish:
    if type(data) is Node:
        return loader.child(data, None)
    if not isinstance(data, list):
        raise loader.error(FormatError, f"a {kind.__name__} is malformed")
    targets = _targets(target, kind, len(data))
    parts = [loader.child(d, t, i) for i, (d, t) in enumerate(zip(data, targets, strict=True))]
    return lambda: [part() for part in parts]


class _Sequence(_Container):
    """A type that is made from an iterable of its items."""

    def split(self, value: Any, saver: Saver) -> Any:
        return _items(value, saver)

    def join(self, data: Any, target: Any, loader: Loader) -> Finish:
        items = _load_items(data, target, self.kind, loader)
        return lambda: self.kind(items())


def _sequence(kind: type) -> Provider:
    made: Provider = type(
        f"_{kind.__name__}", (_Sequence,), {"kind": kind, "name": kind.__name__}
    )()
    return made


class _Deque(_Sequence):
    name = "deque"
    kind = deque

    def split(self, value: Any, saver: Saver) -> Any:
        return {"items": _items(value, saver), "maxlen": value.maxlen}

    def join(self, data: Any, target: Any, loader: Loader) -> Finish:
        items = _load_items(data["items"], target, deque, loader)
        return lambda: deque(items(), data["maxlen"])


class _Mapping(_Container):
    """A dict of any keys, or a subclass that is made from its items."""

    def split(self, value: Any, saver: Saver) -> Any:
        return _pairs(value, saver)

    def join(self, data: Any, target: Any, loader: Loader) -> Finish:
        items = _load_pairs(data, target, loader)

        def finish() -> Any:
            found = items()
            return found if found is target else self.kind(found)

        return finish


def _key(key: Hashable, saver: Saver) -> Any:
    data = saver.child(key, key)
    if contains_leaf(data, long_values=True):
        raise saver.refuse(f"a key of type {type(key).__name__} is an array, or too long")
    return data


def _pairs(value: dict[Hashable, Any], saver: Saver) -> Any:
    if is_long(value) and is_long(value.values()):
        values = list(value.values())
        return {"keys": saver.child(list(value)), "values": saver.child(values)}
    return [[_key(key, saver), saver.child(item, key)] for key, item in value.items()]


def _load_pairs(data: Any, target: Any, loader: Loader) -> Finish:
    if isinstance(data, dict):  # long and plain: nothing in it has memory of its own
        keys, values = loader.child(data["keys"], None), loader.child(data["values"], None)
        return lambda: dict(zip(keys(), values(), strict=True))
    pairs = []
    for pair in data if isinstance(data, list) else [None]:
        if not (isinstance(pair, list) and len(pair) == 2):
            raise loader.error(FormatError, "a mapping is malformed")
        if contains_leaf(pair[0], long_values=True):  # keys are needed before anything is read
            raise loader.error(FormatError, "a key is an array")
        key = loader.child(pair[0], None)()
        if not isinstance(key, Hashable):
            raise loader.error(FormatError, "a key cannot be hashed")
        pairs.append((key, pair[1]))
    return loader.items(pairs, target)


def _mapping(kind: type) -> Provider:
    made: Provider = type(f"_{kind.__name__}", (_Mapping,), {"kind": kind, "name": kind.__name__})()
    return made


class _OrderedDict(_Mapping):
    """With what was hung on to it: torch's state dicts carry their `_metadata` so."""

    name = "OrderedDict"
    kind = OrderedDict

    def split(self, value: Any, saver: Saver) -> Any:
        return {"items": _pairs(value, saver), "attributes": saver.child(vars(value))}

    def join(self, data: Any, target: Any, loader: Loader) -> Finish:
        items = _load_pairs(data["items"], target, loader)
        attributes = loader.child(data["attributes"], None)

        def finish() -> Any:
            found = items()
            made = found if found is target else OrderedDict(found)
            if isinstance(made, OrderedDict):
                vars(made).update(attributes())
            return made

        return finish


class _DefaultDict(_Mapping):
    name = "defaultdict"
    kind = defaultdict

    def split(self, value: Any, saver: Saver) -> Any:
        factory = value.default_factory
        if factory is not None and _FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
            raise saver.refuse(
                f"its default_factory {factory!r} is not one of {sorted(_FACTORIES)}"
            )
        return {"factory": factory and factory.__name__, "items": _pairs(value, saver)}

    def join(self, data: Any, target: Any, loader: Loader) -> Finish:
        factory = data["factory"]
        if factory is not None and factory not in _FACTORIES:
            raise loader.error(FormatError, "a defaultdict has an unknown factory")
        items = _load_pairs(data["items"], target, loader)

        def finish() -> Any:
            found = items()
            return found if found is target else defaultdict(_FACTORIES.get(factory), found)

        return finish


class _LongValue(Provider):
    """A value that is stored as an array of bytes; the tree makes these, no type is claimed."""

    def __init__(self, name: str, make: Callable[[Bytes], Any]) -> None:
        self.name = name  # type: ignore[misc]
        self._make = make

    def claims(self, kind: type) -> bool:
        return False

    def split(self, value: Any, saver: Saver) -> Any:
        raise saver.refuse("long values are split by the tree itself")

    def join(self, data: Any, target: Any, loader: Loader) -> Finish:
        if not isinstance(data, LeafRef):
            raise loader.error(FormatError, f"a long {self.name} is malformed")
        dtype, shape = loader.describe(data)
        if dtype != "uint8" or len(shape) != 1:
            raise loader.error(FormatError, f"a long {self.name} is not an array of bytes")
        out = loader.shared(data, lambda: np.empty(shape[0], np.uint8))
        loader.read(data, out)
        return lambda: self._make(out)


CONTAINERS: tuple[Provider, ...] = (
    _mapping(dict),
    _OrderedDict(),
    _mapping(Counter),
    _DefaultDict(),
    *(_sequence(kind) for kind in (tuple, set, frozenset)),
    _Deque(),
    *CLASSES,
    _LongValue("bytes", lambda out: out.tobytes()),
    _LongValue("str", lambda out: str(out.data, "utf-8", "surrogatepass")),
    _LongValue("packed", lambda out: unpack_plain(out.data)),
)
"""In the order in which they are asked."""
