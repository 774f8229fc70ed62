"""Instances of classes: dataclasses, namespaces and named tuples, as providers of the core itself.

A class is named in the checkpoint and looked up among the modules already loaded; nothing is
imported on a file's word, and no `__init__` is run.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

from .errors import FormatError, UnknownClassError
from .provider import Finish, Loader, Provider, Saver

__all__ = ["CLASSES", "class_name", "find_class"]


def class_name(kind: type, saver: Saver) -> list[str]:
    """Return how a class is written down; refuse one that could not be found again."""
    found = getattr(sys.modules.get(kind.__module__), kind.__qualname__.split(".")[0], None)
    for part in kind.__qualname__.split(".")[1:]:
        found = getattr(found, part, None)
    if found is not kind:
        name = f"{kind.__module__}.{kind.__qualname__}"
        raise saver.refuse(f"its class {name} cannot be found by that name (is it local?)")
    return [kind.__module__, kind.__qualname__]


def find_class(named: Any, loader: Loader, accept: Callable[[type], bool]) -> type:
    """Return a class by the name in a checkpoint, from the modules already loaded.

    Raises:
        UnknownClassError: it is not loaded, or is not of the kind that `accept` wants.
    """
    if not (isinstance(named, list) and len(named) == 2 and all(type(n) is str for n in named)):
        raise loader.error(FormatError, "a class name is malformed")
    found: Any = sys.modules.get(named[0])
    for part in named[1].split("."):
        found = vars(found).get(part) if isinstance(found, type | types.ModuleType) else None
    if not isinstance(found, type) or not accept(found):
        name = ".".join(named)
        reason = f"its class {name} is not loaded here: import {named[0]} before restoring"
        raise loader.error(UnknownClassError, reason)
    return found


class _Object(Provider):
    """A class instance that is its fields: rebuilt without running any code of its class."""

    priority = -50  # asked last: `RNG` and `Pickled` are dataclasses, and other providers' business

    def fields(self, value: Any) -> dict[str, Any]:
        """Return the fields by name."""
        return dict(vars(value))

    def split(self, value: Any, saver: Saver) -> Any:
        named = class_name(type(value), saver)
        fields = {key: saver.child(item, key) for key, item in self.fields(value).items()}
        return {"class": named, "fields": [list(pair) for pair in fields.items()]}

    def join(self, data: Any, target: Any, loader: Loader) -> Finish:
        kind = find_class(data["class"], loader, self.claims)
        if not all(type(name) is str for name, _ in data["fields"]):
            raise loader.error(FormatError, "a field has no name")
        targets = self.fields(target) if type(target) is kind else {}
        parts = {name: loader.child(item, targets.get(name), name) for name, item in data["fields"]}
        return lambda: self.make(kind, {name: part() for name, part in parts.items()})

    def make(self, kind: type, fields: dict[str, Any]) -> Any:
        """Return an instance with these fields."""
        instance: Any = object.__new__(kind)
        for name, value in fields.items():
            slot = inspect.getattr_static(kind, name, None)
            if isinstance(slot, types.MemberDescriptorType):
                slot.__set__(instance, value)
            else:  # straight into the dict: a property's setter, or __class__, is not to be run
                vars(instance)[name] = value
        return instance


class _Dataclass(_Object):
    name = "dataclass"

    def claims(self, kind: type) -> bool:
        code = hasattr(kind, "__del__")  # would run on whatever fields a file gives it
        own_new = any("__new__" in vars(base) for base in kind.__mro__[:-1])
        stateful = hasattr(kind, "state_dict")
        return dataclasses.is_dataclass(kind) and not (own_new or stateful or code)

    def fields(self, value: Any) -> dict[str, Any]:
        named = [f.name for f in dataclasses.fields(value) if hasattr(value, f.name)]
        return getattr(value, "__dict__", {}) | {name: getattr(value, name) for name in named}


class _Namespace(_Object):
    name = "namespace"

    def claims(self, kind: type) -> bool:
        return kind is argparse.Namespace or kind is types.SimpleNamespace

    def make(self, kind: type, fields: dict[str, Any]) -> Any:
        instance = kind()
        vars(instance).update(fields)
        return instance


class _NamedTuple(_Object):
    name = "namedtuple"

    def claims(self, kind: type) -> bool:
        return kind.__bases__ == (tuple,) and isinstance(getattr(kind, "_fields", None), tuple)

    def fields(self, value: Any) -> dict[str, Any]:
        return dict(zip(value._fields, value, strict=True))

    def join(self, data: Any, target: Any, loader: Loader) -> Finish:
        kind: Any = find_class(data["class"], loader, self.claims)
        if list(kind._fields) != [name for name, _ in data["fields"]]:
            reason = f"its class {kind.__qualname__} has other fields now: {kind._fields}"
            raise loader.error(UnknownClassError, reason)
        return super().join(data, target, loader)

    def make(self, kind: type, fields: dict[str, Any]) -> Any:
        return tuple.__new__(kind, fields.values())


CLASSES: tuple[Provider, ...] = (_Dataclass(), _Namespace(), _NamedTuple())
"""In the order in which they are asked."""
