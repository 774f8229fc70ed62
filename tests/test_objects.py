"""Python's own values come back with their types, or are refused by name at the call."""

import argparse
import collections
import dataclasses
import datetime as dt
import enum
import functools
import io
import math
import pathlib
import random
import re
import sys
import types
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from support import assert_same, nan_with_payload

import datastates as ds


class Color(enum.Enum):
    RED = "r"
    GREEN = (1, 2)
    ALSO_RED = "r"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


class Mode(enum.StrEnum):
    FAST = "fast"


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    BOTH = READ | WRITE


class Bits(enum.IntFlag, boundary=enum.KEEP):
    ONE = 1


class Point(NamedTuple):
    x: Any
    y: Any = 0


Pair = collections.namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass
class Config:
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    derived: Any = dataclasses.field(init=False, default=None)

    def __post_init__(self):
        self.derived = "made by __post_init__"


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    name: str
    inner: Any = None


@dataclasses.dataclass(slots=True)
class Slotted(Config):
    more: int = 0


@dataclasses.dataclass(kw_only=True)
class Child(Config):
    depth: int

    @dataclasses.dataclass
    class Nested:
        t: torch.Tensor


@dataclasses.dataclass(eq=False)
class Partial:
    given: int
    never_set: int = dataclasses.field(init=False)


PLAIN = {
    "None": None,
    "bools": [True, False],
    "ints": [0, -1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, -(2**64), 10**4000],
    "floats": [0.0, -0.0, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 0.1],
    "nans": [math.nan, -math.nan, nan_with_payload(1), nan_with_payload(2**50 + 7)],
    "complex": [1j, complex(-0.0, 0.0), complex(math.nan, -math.inf), -0j],
    "strings": [
        "",
        "ünï",
        "\0",
        "\ud800 lone",
        "🙂",
        "a" * 70_000,
        "ß" * 40_000,
        "\udfff" * 70_000,
    ],
    "bytes": [b"", b"\xff\0", bytes(70_000), bytearray(b"xyz"), bytearray(70_000), bytearray()],
    "empties": {"a": {}, "b": [], "c": (), "d": {"e": {}}, "f": None, "g": set(), "h": [[], [()]]},
    "tuples": [(1,), (1, (2, (3,))), ((), []), (None,)],
    "sets": [{1, "a", None, (1, 2)}, frozenset({1.5, frozenset()}), {frozenset({2})}],
    "ranges": [range(5), range(0), range(10, -5, -3), range(2**70, 2**70 + 2)],
    "slices": [slice(None), slice(1, None, -2), slice("a", (1, 2))],
    "singletons": [..., NotImplemented],
    "enums": [Color.RED, Color.GREEN, Color.ALSO_RED, Level.HIGH, Mode.FAST],
    "flags": [Access.READ, Access.BOTH, Access(0), ~Access.READ, Bits(6), Bits.ONE],
    "paths": [pathlib.Path("/a/b"), pathlib.PurePosixPath("c"), pathlib.PureWindowsPath("C:\\x")],
    "dates": [dt.date(1, 1, 1), dt.date.max, dt.timedelta(-1, 5, 7), dt.timedelta.max],
    "times": [
        dt.time(1, 2, 3, 4, fold=1),
        dt.datetime(2024, 2, 29, 23, 59, 59, 999_999),
        dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
        dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-5, seconds=3), "odd")),
        dt.time(5, tzinfo=dt.timezone(dt.timedelta(minutes=30))),
        zoneinfo.ZoneInfo("UTC"),
    ],
    "numbers": [
        Decimal("1.10"),
        Decimal("-0"),
        Decimal("NaN123"),
        Decimal("sNaN"),
        Fraction(-1, 3),
    ],
    "long numbers": [
        Decimal("-Infinity"),
        Decimal(1).scaleb(-999),
        Decimal(2**9000),
        Fraction(2**99),
    ],
    "uuid": uuid.UUID(int=5),
    "torch": [
        torch.Size([2, 3]),
        torch.float8_e4m3fn,
        torch.device("cuda:1"),
        torch.device("meta"),
    ],
    "layouts": [torch.strided, torch.sparse_csr, torch.channels_last, torch.preserve_format],
    "ordered": OrderedDict([("b", 1), ("a", 2)]),
    "defaults": [
        defaultdict(list, a=[1]),
        defaultdict(None, {1: 2}),
        defaultdict(int),
        defaultdict(dict),
    ],
    "counter": Counter("abracadabra"),
    "deques": [deque([1, 2], maxlen=5), deque(maxlen=0), deque([[1]])],
    "named": [Point(1, [2]), Pair("l", None), Point(Point(1, 2), ())],
    "namespaces": [argparse.Namespace(lr=0.1, tags=["a"]), types.SimpleNamespace(a=1)],
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_value_comes_back_with_its_type(ckpt, name):
    """Cases 18, 20, 21."""
    ckpt.save({"value": PLAIN[name]})
    assert_same({"value": PLAIN[name]}, ckpt.restore())


@pytest.mark.parametrize("name", PLAIN)
def test_a_value_replaces_whatever_plain_value_is_in_the_target(memory_ckpt, name):
    memory_ckpt.save({"value": PLAIN[name]})
    for other in (None, 0, "x", [1], {"a": 1}, (1, 2), np.float32(1), Color.RED):
        assert_same({"value": PLAIN[name]}, memory_ckpt.restore(into={"value": other}))


@pytest.mark.parametrize("name", PLAIN)
def test_a_value_may_be_the_state_itself(memory_ckpt, name):
    memory_ckpt.save(PLAIN[name])
    assert_same(PLAIN[name], memory_ckpt.restore())


def test_empty_containers_stay_what_they_are(ckpt):
    """Case 20, its very words."""
    state = {"a": {}, "b": [], "c": (), "d": {"e": {}}, "f": None}
    ckpt.save(state)
    assert_same(state, ckpt.restore())


def test_the_state_of_random_can_be_set_again(ckpt):
    """Case 21."""
    random.seed(5)
    ckpt.save({"random": random.getstate()})
    expected = random.random()
    random.setstate(ckpt.restore()["random"])
    assert random.random() == expected


# Dataclasses.


DATACLASSES = {
    "plain": lambda: Config(0.1),
    "changed": lambda: dataclasses.replace(Config(0.1), betas=(1, 2)),
    "frozen": lambda: Frozen("a", Frozen("b", [1])),
    "slots and inherited": lambda: Slotted(0.1, more=3),
    "inherited": lambda: Child(lr=0.5, depth=2),
    "with a tensor": lambda: Frozen("t", torch.arange(3)),
    "nested class": lambda: Child.Nested(torch.ones(2)),
    "generic alias fields": lambda: Config(0.1, extra={"a": Config(0.2)}),
}


@pytest.mark.parametrize("name", DATACLASSES)
def test_dataclasses_come_back(ckpt, name):
    value = DATACLASSES[name]()
    ckpt.save({"cfg": value})
    assert_same({"cfg": value}, ckpt.restore())


def test_a_dataclass_comes_back_without_its_init_being_run(ckpt):
    config = Config(0.1)
    config.derived = "changed since"
    config.added = "not a field"
    ckpt.save(config)
    restored = ckpt.restore()
    assert restored.derived == "changed since"
    assert restored.added == "not a field"


def test_a_field_that_was_never_set_stays_unset(ckpt):
    ckpt.save(Partial(3))
    restored = ckpt.restore()
    assert restored.given == 3
    assert not hasattr(restored, "never_set")


def test_tensors_in_a_dataclass_are_filled_in_place(ckpt):
    target = Frozen("other", torch.zeros(3))
    ckpt.save({"cfg": Frozen("t", torch.arange(3.0))})
    restored = ckpt.restore(into={"cfg": target})
    assert restored["cfg"].name == "t"
    assert restored["cfg"].inner is target.inner
    assert torch.equal(target.inner, torch.arange(3.0))


# Large values.


@pytest.mark.parametrize("place", ["memory", "directory"])
def test_millions_of_items_come_back(make_ckpt, place):
    """Case 12."""
    ckpt = make_ckpt(place)
    state = {
        "list": list(range(3_000_000)),
        "dict": {str(i): i for i in range(300_000)},
        "int keys": {i: i * 0.5 for i in range(700_000)},
        "counter": Counter({f"word {i}": i for i in range(700_000)}),
        "default": defaultdict(int, {(i if i % 2 else str(i)): None for i in range(5_000)}),
        "set": set(range(3_000_000)),
        "tuple": tuple(range(3_000_000)),
        "deque": deque(range(5_000), maxlen=6_000),
    }
    started = monotonic()
    ckpt.save(state)
    restored = ckpt.restore()
    assert monotonic() - started < 30
    assert restored == state
    assert list(map(type, restored.values())) == list(map(type, state.values()))
    assert restored["deque"].maxlen == 6_000
    assert restored["default"].default_factory is int


def test_a_long_list_of_everything_plain_comes_back(ckpt):
    values = [None, True, 1, -1, 2**80, 1.5, math.nan, "text", "\ud800"] * 1_000
    state = {"list": values, "dict": {str(i): v for i, v in enumerate(values)}}
    ckpt.save(state)
    assert_same(state, ckpt.restore())


@pytest.mark.parametrize("count", [17, 4095, 5000])
def test_long_strings_in_long_lists_come_back(ckpt, count):
    """They would make the manifest too long, or one msgpack string."""
    texts = ["x" * 20_000, "y" * 70_000] + ["z" * 1_000] * (count - 2)
    state = {"list": texts, "dict": {f"{i} {'k' * 100}": t for i, t in enumerate(texts)}}
    ckpt.save(state)
    assert_same(state, ckpt.restore())


def test_a_long_value_is_captured_at_the_call(ckpt):
    state = {"list": list(range(10_000)), "bytes": bytearray(100_000), "dict": {"a": [1]}}
    save = ckpt.save_async(state)
    state["list"][5] = "changed"
    state["bytes"][:] = b"\1" * 100_000
    state["dict"]["a"].append(2)
    save.result(60)
    expected = {"list": list(range(10_000)), "bytes": bytearray(100_000), "dict": {"a": [1]}}
    assert_same(expected, ckpt.restore())


# What cannot be stored is refused by name, at the call.


def a_local_dataclass():
    @dataclasses.dataclass
    class Local:
        x: int

    return Local(1)


def a_local_enum():
    return enum.Enum("Unfound", "A").A


class Plain:
    pass


class MyList(list):
    pass


class MyDict(dict):
    pass


class MyStr(str):
    pass


class MyInt(int):
    pass


class MyFloat(float):
    pass


class MyPoint(Point):
    pass


class MyDate(dt.datetime):
    pass


class MyZone(dt.tzinfo):
    def utcoffset(self, when):
        return dt.timedelta(0)


REFUSED = {
    "a lambda": lambda: lambda: 0,
    "a function": lambda: assert_same,
    "a builtin": lambda: len,
    "a partial": lambda: functools.partial(max, 1),
    "a class": lambda: Plain,
    "an instance": Plain,
    "an object": object,
    "a module": lambda: math,
    "a generator": lambda: (x for x in "ab"),
    "an iterator": lambda: iter([1]),
    "a file": io.StringIO,
    "a pattern": lambda: re.compile("a"),
    "an exception": lambda: ValueError("x"),
    "a memoryview": lambda: memoryview(b"x"),
    "a mapping proxy": lambda: types.MappingProxyType({}),
    "a list subclass": MyList,
    "a dict subclass": MyDict,
    "a str subclass": lambda: MyStr("s"),
    "an int subclass": lambda: MyInt(3),
    "a float subclass": lambda: MyFloat(3),
    "a tuple subclass": lambda: MyPoint(1, 2),
    "a datetime subclass": lambda: MyDate(2024, 1, 1),
    "a time zone of one's own": lambda: dt.datetime(2024, 1, 1, tzinfo=MyZone()),
    "a zone without a key": lambda: zoneinfo.ZoneInfo.from_file(
        io.BytesIO(b"TZif" + b"\0" * 32 + b"\0\0\0\1\0\0\0\4" + b"\0" * 6 + b"UTC\0")
    ),
    "a default factory": lambda: defaultdict(lambda: 0),
    "a local dataclass": a_local_dataclass,
    "a local enum": a_local_enum,
    "a local named tuple": lambda: collections.namedtuple("Unfound", "a")(1),
    "a storage": lambda: torch.ones(2).untyped_storage(),
    "a weak reference": lambda: __import__("weakref").ref(Plain),
    "a key of one's own": lambda: {MyStr("k"): 1},
    "a function as a key": lambda: {len: 1},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_stored_is_refused_by_name_at_the_call(memory_ckpt, name):
    value = REFUSED[name]()
    with pytest.raises(ds.UnsupportedValueError, match=r"cannot save sched/0/fn") as refused:
        memory_ckpt.save_async({"sched": [{"fn": value}]})
    assert refused.value.key.startswith("sched/0/fn")
    assert isinstance(refused.value, ds.StateError | TypeError)
    assert memory_ckpt.steps() == []


# Classes that are gone.


def test_a_class_that_is_missing_is_named_and_the_rest_can_be_had(ckpt, monkeypatch):
    """Case 18."""
    ckpt.save({"model": torch.arange(3), "args": {"config": Config(0.1), "color": Color.RED}})
    monkeypatch.delattr(sys.modules[__name__], "Config")
    with pytest.raises(ds.UnknownClassError, match=r"args/config: .*Config is not loaded"):
        ckpt.restore()
    with pytest.raises(ds.UnknownClassError, match="Config"):
        ckpt.restore(step=0)
    assert_same({"model": torch.arange(3)}, ckpt.restore(only=["model"]))
    assert ckpt.restore(only=["args/color"]) == {"args": {"color": Color.RED}}


@pytest.mark.parametrize(
    ("value", "changed"),
    [
        (Color.GREEN, enum.Enum("Color", {"RED": "r"}, module=__name__)),
        (Bits(6), enum.IntFlag("Bits", {"ONE": 1}, boundary=enum.STRICT, module=__name__)),
        (Point(1, 2), collections.namedtuple("Point", "y x", module=__name__)),
        (Config(1.0), type("Config", (), {"__module__": __name__})),
    ],
)
def test_a_class_that_has_changed_is_named_and_no_damage_is_seen(ckpt, monkeypatch, value, changed):
    """An older step would be no better: it is the code that does not fit."""
    ckpt.save({"v": 0}, step=1)
    ckpt.save({"v": value}, step=2)
    monkeypatch.setattr(sys.modules[__name__], type(value).__name__, changed)
    with pytest.raises(ds.UnknownClassError, match=r"cannot restore v: .*" + type(value).__name__):
        ckpt.restore()


def test_a_path_of_another_system_comes_back_as_a_pure_path():
    """Case 18: a WindowsPath cannot be made here."""
    from datastates.providers.objects import _READ

    assert _READ["WindowsPath"]("C:\\x") == pathlib.PureWindowsPath("C:\\x")
    assert type(_READ["PosixPath"]("/x")) is type(pathlib.Path())


# Pickles.


def test_a_pickle_is_written_where_asked_for_and_read_where_trusted(ckpt):
    ckpt.save({"fn": ds.Pickled(Plain), "t": torch.ones(2)})
    with pytest.raises(ds.UntrustedError, match=r"fn: it is a pickle"):
        ckpt.restore()
    assert_same({"t": torch.ones(2)}, ckpt.restore(only=["t"]))
    assert ckpt.restore(trust=True)["fn"] is Plain


def test_what_cannot_be_pickled_is_refused_by_name(ckpt):
    with pytest.raises(ds.UnsupportedValueError, match=r"cannot save fn: it cannot be pickled"):
        ckpt.save_async({"fn": ds.Pickled(lambda: 0)})


def test_a_large_pickle_comes_back(ckpt):
    value = [MyStr("x")] * 100_000
    ckpt.save(ds.Pickled(value))
    assert ckpt.restore(trust=True) == value
