"""Skeleton → state: every object is put together again, in place where there is a target.

Runs before any byte is read: it decides where each array's bytes shall go and what is left to do
afterwards. Nothing of the target changes until the reads, and no plain value of it until the
finish.

How a target is compared (a *target* is the object at the same path in the caller's tree):

1. An object with memory of its own (an array, a module) is filled in place by its provider.
2. A dict or list with such objects anywhere below, here or in the checkpoint, is filled in place
   itself: a dict key by key, a list of the same length item by item.
3. Every other plain value, container or not, is replaced by the stored one as a whole.

Whatever has memory of its own is filled or reported, never dropped from the target in silence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, ValuesView
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import DatastatesError, FormatError, NoMemoryError, UnknownNameError
from .manifest import Manifest
from .memory import address
from .names import Path, readable
from .provider import Alias, Bytes, Finish, LeafRef, Provider, Sink
from .registry import Providers
from .selection import Differences, Selection
from .tree import LONG_VALUES, MAX_DEPTH, PLAIN, Node, Skeleton, contains_leaf

__all__ = ["ReadRequest", "StateLoader"]

_MALFORMED = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_MAX_DEPTH = MAX_DEPTH + 16
"""What a state can be saved with, and some more for what providers add."""
_MANY = (list, tuple, set, frozenset, deque, ValuesView)


def _kind(value: object) -> str:
    """Describe a target or stored data in a message."""
    if type(value) is Node:
        return value.provider
    return f"{type(value).__name__}{f' of {len(value)}' if isinstance(value, list) else ''}"


@dataclass(frozen=True, slots=True, eq=False)
class ReadRequest:
    """Bytes of a stored array, wanted in memory or in a sink."""

    array: int
    """The array that holds the bytes; never an alias."""
    start: int
    """First byte, in the array's bytes in C order."""
    nbytes: int
    out: Bytes | Sink


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
        self._claimed: dict[tuple[str, int], tuple[int, int]] = {}
        self._shared: dict[int, Any] = {}
        self._settled: set[int] = set()
        self._path: Path = ()
        self._depth = 0
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

    def claim(self, ref: LeafRef, space: str, start: int) -> bool:
        """See `Loader.claim`."""
        alias = self._array(ref).alias
        source = (ref.index, 0) if alias is None else (alias.base, alias.offset)
        if self._claimed.setdefault((space, start), source) == source:
            return True
        self.mismatch("shares its memory here with a name that has other values in the checkpoint")
        return False

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
        error = kind(f"cannot restore {key}: {reason:.500}")
        if isinstance(error, FormatError):
            error.key = key
        return error

    def _at(self, path: Path, provider: str, finish: Finish) -> Finish:
        """Let errors of the finish name the path, too."""

        def located() -> Any:
            outside, self._path = self._path, path
            try:
                with self._checked(provider):
                    return finish()
            finally:
                self._path = outside

        return located

    @contextmanager
    def _checked(self, provider: str) -> Iterator[None]:
        """Turn what malformed data makes of a provider's code into an error of ours."""
        try:
            yield
        except DatastatesError:
            raise
        except MemoryError as error:
            raise self.error(NoMemoryError, "there is no memory for it") from error
        except _MALFORMED as error:
            reason = f"its {provider} data is malformed: {error!r:.200}"
            raise self.error(FormatError, reason) from error

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
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self.error(FormatError, f"nests over {MAX_DEPTH} deep")
        if keys:
            self._selection.wants(self._path)  # what is asked for has been met, if it is here
        try:
            return self._value(data, target)
        finally:
            self._depth -= 1
            self._path, self._adopt = outside

    # The walk.

    def _array(self, ref: LeafRef) -> Any:
        if not isinstance(ref, LeafRef) or ref.index >= len(self._manifest.arrays):
            raise self.error(FormatError, "refers to an array that is not there")
        return self._manifest.arrays[ref.index]

    def _value(self, data: Skeleton, target: Any) -> Finish:
        if target is None or self._adopt:
            return self._build(data, target)
        if type(data) is Node and self._provider(data).in_place:
            self._settle([target])  # its provider fills it, or reports it
            return self._build(data, target)
        if not self._in_place(target):
            finish = self._build(data, target)
            if all(id(held) in self._settled for held in self._held(target)):
                return finish
        self._settle([target])
        self.mismatch(f"{_kind(target)} here, {_kind(data)} stored")
        return lambda: target

    def _build(self, data: Skeleton, target: Any) -> Finish:
        if type(data) is Node:
            return self._node(data, target)
        if type(data) is dict:
            return self.items(list(data.items()), target)
        if type(data) is list:
            return self._list(data, target)
        if type(data) is LeafRef:
            raise self.error(FormatError, "is an array without a provider")
        if type(data) not in PLAIN and type(data) is not bytes:
            raise self.error(FormatError, f"is a {type(data).__name__}, which is no plain value")
        return lambda: data

    def _provider(self, node: Node) -> Provider:
        try:
            return self._providers.named(node.provider)
        except UnknownNameError as error:
            raise self.error(UnknownNameError, str(error)) from error

    def _node(self, node: Node, target: Any) -> Finish:
        provider = self._provider(node)
        if node.provider in LONG_VALUES:
            self._selection.takes(self._path)
        with self._checked(node.provider):
            return self._at(self._path, node.provider, provider.join(node.data, target, self))

    def _in_place(self, value: object) -> bool:
        provider = self._providers.for_type(type(value))
        return provider is not None and provider.in_place

    def _held(self, value: object, depth: int = MAX_DEPTH) -> Iterator[object]:
        """Yield the objects in a target that have memory of their own."""
        if self._in_place(value):
            yield value
            return
        items = value.values() if isinstance(value, dict) else value
        if isinstance(items, _MANY) and depth and not PLAIN.issuperset(map(type, items)):
            for item in items:
                yield from self._held(item, depth - 1)

    def _structural(self, data: Skeleton, target: object) -> bool:
        if not (self._path and self._selection.whole(self._path)) or contains_leaf(data):
            return True
        return any(True for _ in self._held(target))

    def _list(self, data: list[Any], target: Any) -> Finish:
        fits = type(target) is list and len(target) == len(data) and self._structural(data, target)
        parts = {
            i: self.child(item, target[i] if fits else None, i)
            for i, item in enumerate(data)
            if self._selection.wants((*self._path, i))
        }
        if not fits or self._adopt:
            return lambda: [part() for part in parts.values()]
        self._settle(item for i, item in enumerate(target) if i not in parts)

        def finish() -> Any:
            for i, part in parts.items():
                target[i] = part()
            return target

        return finish

    def items(self, pairs: Sequence[tuple[Hashable, Skeleton]], target: Any) -> Finish:
        """See `Loader.items`."""
        if not (isinstance(target, dict) and self._structural([d for _, d in pairs], target)):
            parts = self._parts(pairs, {})
            return lambda: {key: part() for key, part in parts.items()}
        if self._adopt:
            kept = {k: v for k, v in target.items() if not self._selection.wants((*self._path, k))}
            parts = self._parts(pairs, target)
            return lambda: kept | {key: part() for key, part in parts.items()}
        self._compare({key for key, _ in pairs}, target)
        parts = self._parts([pair for pair in pairs if pair[0] in target], target)
        self._settle(item for key, item in target.items() if key not in parts)

        def finish() -> Any:
            target.update({key: part() for key, part in parts.items()})
            return target

        return finish

    def _parts(
        self, pairs: Sequence[tuple[Hashable, Skeleton]], targets: dict[Any, Any]
    ) -> dict[Hashable, Finish]:
        return {
            key: self.child(item, targets.get(key), key)
            for key, item in pairs
            if self._selection.wants((*self._path, key))
        }

    def _settle(self, targets: Iterable[object]) -> None:
        """Note that these are left as they are, and whether that is a difference was decided."""
        for target in targets:
            self._settled.update(map(id, self._held(target)))

    def _compare(self, data: set[Hashable], into: dict[Any, Any]) -> None:
        for keys, other, found in (
            (into, data, self.differences.missing),
            (data, into, self.differences.unexpected),
        ):
            paths = [(*self._path, key) for key in keys if key not in other]
            found.extend(readable(path) for path in paths if self._selection.wants(path))
