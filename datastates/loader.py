"""Skeleton → state: every object is put together again, in place where there is a target.

Runs before any byte is read: it decides where each array's bytes shall go and what is left to do
afterwards. Nothing of the target changes until the reads, and no plain value of it until the
finish.

How a target is compared (a *target* is the object at the same path in the caller's tree):

1. A dict that holds arrays or stateful objects, here or in the checkpoint, is compared key by key.
2. Every other plain value, container or not, is replaced by the stored one as a whole.
3. An object with memory of its own is filled in place by its provider.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .alias import Alias
from .errors import FormatError, UnknownNameError
from .manifest import Manifest
from .memory import address
from .names import Path, readable
from .provider import Bytes, Finish, LeafRef, Sink
from .registry import Providers
from .tree import Node, Skeleton, contains_leaf

__all__ = ["Differences", "ReadRequest", "Selection", "StateLoader"]


@dataclass(frozen=True, slots=True, eq=False)
class ReadRequest:
    """Bytes of a stored array, wanted in memory or in a sink."""

    array: int
    """The array that holds the bytes; never an alias."""
    start: int
    """First byte, in the array's bytes in C order."""
    nbytes: int
    out: Bytes | Sink


@dataclass(slots=True)
class Differences:
    """How a target and a checkpoint differ, as readable paths."""

    missing: list[str] = field(default_factory=list)
    """In the target, not in the checkpoint; left as they were."""
    unexpected: list[str] = field(default_factory=list)
    """In the checkpoint, not in the target; not read."""
    mismatched: list[str] = field(default_factory=list)
    """In both, with another shape, data type or kind; left as they were."""

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.mismatched)


class Selection:
    """The parts of a state that are wanted."""

    def __init__(self, parts: Sequence[Path] | None) -> None:
        self._parts = parts
        self.matched: set[Path] = set()
        """Those that were found."""

    def wants(self, path: Path) -> bool:
        """Tell whether anything at, above or below `path` is wanted."""
        if self._parts is None:
            return True
        hits = [p for p in self._parts if p[: len(path)] == path[: len(p)]]
        self.matched.update(p for p in hits if len(path) >= len(p))
        return bool(hits)

    def unmatched(self) -> list[Path]:
        """Return the wanted parts that were not met."""
        return [p for p in self._parts or () if p not in self.matched]


class StateLoader:
    """Walks one skeleton; the `Loader` of each provider is this with the path where it stands."""

    def __init__(
        self,
        manifest: Manifest,
        providers: Providers,
        *,
        selection: Selection,
        trusted: bool,
        device: str | None,
    ) -> None:
        self._manifest, self._providers = manifest, providers
        self._selection = selection
        self.trusted, self.device = trusted, device
        self.requests: list[ReadRequest] = []
        self.differences = Differences()
        self._asked: set[tuple[int, int, int]] = set()
        self._shared: dict[int, Any] = {}
        self._path: Path = ()
        self._adopt = False

    # What providers use (see `provider.Loader`).

    def describe(self, ref: LeafRef) -> tuple[str, tuple[int, ...]]:
        """See `Loader.describe`."""
        array = self._array(ref)
        return array.dtype, array.shape

    def alias(self, ref: LeafRef) -> Alias | None:
        """See `Loader.alias`."""
        found: Alias | None = self._array(ref).alias
        return found

    def shared(self, ref: LeafRef, make: Callable[[], Any]) -> Any:
        """See `Loader.shared`."""
        if ref.index not in self._shared:
            self._shared[ref.index] = make()
        return self._shared[ref.index]

    def read(self, ref: LeafRef, out: Bytes | Sink) -> None:
        """See `Loader.read`."""
        array = self._array(ref)
        nbytes = out.nbytes
        if nbytes != array.nbytes:
            raise self.error(FormatError, f"has {array.nbytes} bytes, not {nbytes}")
        index, start = ref.index, 0
        if array.alias is not None:
            index, start = array.alias.base, array.alias.offset
            if start + nbytes > self._manifest.arrays[index].nbytes:
                raise self.error(FormatError, "reaches beyond the array whose view it is")
        key = (index, start, address(out) if isinstance(out, np.ndarray) else id(out))
        if nbytes and key not in self._asked:
            self._asked.add(key)
            self.requests.append(ReadRequest(index, start, nbytes, out))

    @property
    def adopting(self) -> bool:
        """See `Loader.adopting`."""
        return self._adopt

    def mismatch(self, reason: str) -> None:
        """See `Loader.mismatch`."""
        if self._adopt:
            return
        self.differences.mismatched.append(f"{readable(self._path)} ({reason})")

    def error(self, kind: type[Exception], reason: str) -> Exception:
        """See `Loader.error`."""
        key = readable(self._path)
        error = kind(f"cannot restore {key}: {reason}")
        if isinstance(error, FormatError):
            error.key = key
        return error

    def child(
        self,
        data: Skeleton,
        target: Any,
        *keys: Hashable,
        adopt: bool = False,
    ) -> Finish:
        """See `Loader.child`."""
        outside = self._path, self._adopt
        self._path, self._adopt = self._path + keys, self._adopt or adopt
        try:
            return self._value(data, target)
        finally:
            self._path, self._adopt = outside

    # The walk.

    def _array(self, ref: LeafRef) -> Any:
        if not isinstance(ref, LeafRef) or ref.index >= len(self._manifest.arrays):
            raise self.error(FormatError, "refers to an array that is not there")
        return self._manifest.arrays[ref.index]

    def _value(self, data: Skeleton, target: Any) -> Finish:
        if type(data) is Node:
            return self._node(data, target)
        if type(data) is dict:
            return self._dict(data, target)
        if type(data) is list:
            return self._list(data, target)
        if type(data) is LeafRef:
            raise self.error(FormatError, "is an array without a provider")
        if target is not None and self._in_place(target) and not self._adopt:
            self.mismatch(f"{type(target).__name__} here, {type(data).__name__} stored")
            return lambda: target
        return lambda: data

    def _node(self, node: Node, target: Any) -> Finish:
        try:
            provider = self._providers.named(node.provider)
        except UnknownNameError as error:
            raise self.error(UnknownNameError, str(error)) from error
        try:
            return provider.join(node.data, target, self)
        except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
            reason = f"its {node.provider} data is malformed: {error!r:.200}"
            raise self.error(FormatError, reason) from error

    def _in_place(self, value: object) -> bool:
        provider = self._providers.for_type(type(value))
        return provider is not None and provider.in_place

    def _structural(self, data: Skeleton, target: object) -> bool:
        if not self._path or contains_leaf(data):
            return True
        values = target.values() if isinstance(target, dict) else target
        return isinstance(values, list | type({}.values())) and any(map(self._in_place, values))

    def _list(self, data: list[Any], target: Any) -> Finish:
        targets: list[Any] = [None] * len(data)
        if type(target) is list and self._structural(data, target):
            if len(target) == len(data):
                targets = target
            elif not self._adopt:
                self.mismatch(f"{len(target)} items here, {len(data)} stored")
                return lambda: target
        parts = [self.child(d, t, i) for i, (d, t) in enumerate(zip(data, targets, strict=True))]
        return lambda: [part() for part in parts]

    def _dict(self, data: dict[str, Any], target: Any) -> Finish:
        if self._in_place(target) and not self._adopt:
            self.mismatch(f"{type(target).__name__} here, dict stored")
            return lambda: target
        return self.items(list(data.items()), target)

    def items(self, pairs: Sequence[tuple[Hashable, Skeleton]], target: Any) -> Finish:
        """See `Loader.items`."""
        structural = isinstance(target, dict) and self._structural([d for _, d in pairs], target)
        into = target if structural else None
        if into is not None and not self._adopt:
            self._compare({key for key, _ in pairs}, into)
        parts = {}
        for key, item in pairs:
            known = into is None or self._adopt or key in into
            if known and self._selection.wants((*self._path, key)):
                parts[key] = self.child(item, into.get(key) if into is not None else None, key)
        return lambda: self._filled(into, parts)

    def _filled(self, into: dict[Any, Any] | None, parts: dict[Any, Finish]) -> dict[Any, Any]:
        values = {key: part() for key, part in parts.items()}
        if into is None or self._adopt:
            return values
        into.update(values)
        return into

    def _compare(self, data: set[Hashable], into: dict[Any, Any]) -> None:
        for keys, other, found in (
            (into, data, self.differences.missing),
            (data, into, self.differences.unexpected),
        ):
            paths = [(*self._path, key) for key in keys if key not in other]
            found.extend(readable(path) for path in paths if self._selection.wants(path))
