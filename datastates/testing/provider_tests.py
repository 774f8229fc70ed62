"""What every provider has to keep, as tests: subclass `ProviderTests`, give values, run pytest.

    class TestMyProvider(ProviderTests):
        def make(self) -> Provider:
            return MyProvider()

        def values(self) -> list[Any]:
            return [Mine(1), Mine(2)]

What was handed over is compared with values made anew, never with what the provider had in hands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from math import prod
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from datastates.checkpointer import Checkpointer
from datastates.containers import CONTAINERS
from datastates.dtypes import ITEMSIZE
from datastates.errors import DatastatesError, MismatchError, UnsupportedValueError
from datastates.loader import StateLoader
from datastates.manifest import Manifest
from datastates.plan import make_plan
from datastates.provider import ArrayLeaf, LeafRef, Provider
from datastates.registry import Providers, installed
from datastates.selection import Selection
from datastates.tree import LONG_VALUES, Flat, Node, flatten, pack, unpack

__all__ = ["ProviderTests"]

_JUNK: tuple[Any, ...] = (
    *(None, True, -1, 3, 1.5, "x", b"x", [], {}, [None], {"x": 1}, [[1, 2], [3]], 2**70),
    *(LeafRef(0), LeafRef(10**6), Node("nobody", None), Node("packed", LeafRef(0)), Node("str", 1)),
)
_MAX_PLACES = 40


class _Foreign:
    """A target that no provider knows."""


class ProviderTests:
    """The suite. `make` and `values` are yours, and whatever else you can say."""

    def make(self) -> Provider:
        """Return the provider under test."""
        raise NotImplementedError

    def values(self) -> Sequence[Any]:
        """Return values that it takes and gives back exactly; new ones at each call."""
        raise NotImplementedError

    def targets(self) -> Sequence[tuple[Any, Any]]:
        """Return values with another object that takes each in place; new ones at each call."""
        return ()

    def refused(self) -> Sequence[Any]:
        """Return values of types that it claims, but cannot store exactly."""
        return ()

    def same(self, one: Any, other: Any) -> bool:
        """Tell whether two values are the same, to the last bit; for most, `==` is not enough."""
        return type(one) is type(other) and bool(one == other)

    # Means.

    @pytest.fixture
    def checkpointer(self) -> Iterator[Checkpointer]:
        """One that uses the provider, in memory."""
        with Checkpointer(f"memory://{uuid4()}", providers=[self.make()]) as made:
            yield made

    @pytest.fixture
    def providers(self) -> Providers:
        """The provider with all others that are installed."""
        return Providers([self.make(), *CONTAINERS, *installed()])

    # What it is.

    def test_it_has_a_name_and_takes_its_values(self, providers: Providers) -> None:
        """By their exact types, and says so each time it is asked."""
        provider = self.make()
        assert provider.name
        assert provider.name not in {*LONG_VALUES, "int"}, "the core uses this name"
        assert isinstance(provider.priority, int)
        for value in [*self.values(), *self.refused(), *(v for v, _ in self.targets())]:
            assert provider.claims(type(value)) is True
            assert providers.for_type(type(value)).name == provider.name  # type: ignore[union-attr]
        assert provider.claims(_Foreign) is False
        assert provider.claims(object) is False

    # Taking apart.

    def test_it_hands_over_plain_data(self, providers: Providers) -> None:
        """Which msgpack holds, and gives back as it was."""
        for value in self.values():
            data = _flatten(value, providers).skeleton["value"]
            assert type(data) is Node
            _assert_plain(data)
            assert pack(unpack(pack(data))) == pack(data)

    def test_taking_apart_changes_nothing(self, providers: Providers) -> None:
        """The value is the caller's, and goes on living."""
        for value, untouched in zip(self.values(), self.values(), strict=True):
            _flatten(value, providers)
            assert self.same(value, untouched)

    def test_sources_can_be_read_in_pieces_from_several_threads(self, providers: Providers) -> None:
        """Any pieces of whole elements give the same bytes as one reading."""
        for value in self.values():
            for _, leaf in _flatten(value, providers).leaves:
                assert leaf.dtype in ITEMSIZE
                assert all(type(n) is int and n >= 0 for n in leaf.shape)
                with ThreadPoolExecutor(4) as pool:
                    assert len(set(pool.map(partial(_read, leaf), (1, 2, 3, 7)))) == 1

    def test_what_it_cannot_store_is_refused_by_name(self, checkpointer: Checkpointer) -> None:
        """At the call, before anything is written."""
        for value in self.refused():
            with pytest.raises(UnsupportedValueError, match="here/it is") as caught:
                checkpointer.save_async({"here": {"it is": value}})
            assert caught.value.key == "here/it is"
        assert checkpointer.steps() == []

    # Putting together.

    def test_values_come_back_the_same(self, checkpointer: Checkpointer) -> None:
        """Alone, and all together in one state."""
        for value, expected in zip(self.values(), self.values(), strict=True):
            checkpointer.save({"value": value})
            assert self.same(checkpointer.restore()["value"], expected)
        checkpointer.save(list(self.values()))
        for restored, expected in zip(checkpointer.restore(), self.values(), strict=True):
            assert self.same(restored, expected)

    def test_a_target_is_filled_in_place(self, checkpointer: Checkpointer) -> None:
        """The very object that was there has the stored value then."""
        for (value, target), (expected, _) in zip(self.targets(), self.targets(), strict=True):
            checkpointer.save({"value": value})
            into = {"value": target}
            assert checkpointer.restore(into) is into
            assert into["value"] is target
            assert self.same(target, expected)

    def test_a_target_is_untouched_until_the_reads(self, providers: Providers) -> None:
        """So that a strict restore can still refuse."""
        for (value, target), (_, untouched) in zip(self.targets(), self.targets(), strict=True):
            flat = _flatten(value, providers)
            _loader(flat, providers).child(flat.skeleton, {"value": target})
            assert self.same(target, untouched)

    def test_a_foreign_target_is_a_mismatch(self, checkpointer: Checkpointer) -> None:
        """Reported by its path, and left alone."""
        if not self.make().in_place:
            pytest.skip("whatever is there is replaced")
        for value, _ in self.targets():
            checkpointer.save({"value": value})
            into: dict[str, Any] = {"value": _Foreign()}
            foreign = into["value"]
            with pytest.raises(MismatchError) as caught:
                checkpointer.restore(into)
            assert [text.partition(" ")[0] for text in caught.value.mismatched] == ["value"]
            checkpointer.restore(into, strict=False)
            assert into["value"] is foreign

    def test_malformed_data_ends_in_an_error_of_ours(self, providers: Providers) -> None:
        """What a file says is checked before it is relied on."""
        for value in self.values():
            flat = _flatten(value, providers)
            node = flat.skeleton["value"]
            for data in _spoilt(node.data):
                loader = _loader(flat, providers)
                try:
                    loader.child({"value": Node(node.provider, data)}, None)()
                except (DatastatesError, MemoryError):
                    continue


def _flatten(value: Any, providers: Providers) -> Flat:
    return flatten({"value": value}, providers)


def _loader(flat: Flat, providers: Providers) -> StateLoader:
    plan = make_plan(flat.leaves, 1 << 30)
    sums = tuple((0,) * array.extents for array in plan.arrays)
    manifest = Manifest(plan.arrays, sums, flat.skeleton, plan.nbytes)
    return StateLoader(manifest, providers, selection=Selection(None), trusted=True, device=None)


def _read(leaf: ArrayLeaf, pieces: int) -> bytes:
    size = ITEMSIZE[leaf.dtype]
    count = prod(leaf.shape)
    out = np.full(count * size, 0xAA, np.uint8)
    step = max(1, -(-count // pieces)) * size
    for start in range(0, len(out), step):
        leaf.source.read(start, out[start : start + step])
    return out.tobytes()


def _assert_plain(data: Any) -> None:
    """Check that data is what the core can store."""
    if type(data) is Node:
        assert isinstance(data.provider, str)
        _assert_plain(data.data)
    elif type(data) is list:
        for item in data:
            _assert_plain(item)
    elif type(data) is dict:
        assert all(type(key) is str for key in data)
        for item in data.values():
            _assert_plain(item)
    else:
        assert type(data) in (type(None), bool, int, float, str, bytes, LeafRef), repr(data)


def _spoilt(data: Any) -> Iterator[Any]:
    """Yield plain data with one part replaced by junk, or left out."""
    for put in islice(_places(data), _MAX_PLACES):
        for junk in _JUNK:
            yield put(junk)
    if isinstance(data, dict):
        yield from ({k: v for k, v in data.items() if k != gone} for gone in data)
    if isinstance(data, list):
        yield from (data[:i] + data[i + 1 :] for i in range(min(len(data), _MAX_PLACES)))


def _places(data: Any) -> Iterator[Callable[[Any], Any]]:
    """Yield for each part of plain data a function that returns it with that part replaced."""
    yield lambda junk: junk
    if type(data) is Node:
        yield from (_inside(partial(Node, data.provider), put) for put in _places(data.data))
    items = data.items() if type(data) is dict else enumerate(data) if type(data) is list else ()
    for key, item in items:
        yield from (_inside(partial(_with, data, key), put) for put in _places(item))


def _inside(outer: Callable[[Any], Any], put: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda junk: outer(put(junk))


def _with(data: Any, key: Any, value: Any) -> Any:
    copy = data.copy()
    copy[key] = value
    return copy
