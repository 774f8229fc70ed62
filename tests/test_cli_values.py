"""How the command line reads the values of a state, without their providers and their classes."""

import datetime as dt
import decimal
import enum
import pathlib
import uuid
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import datastates as ds
from datastates.cli.values import Group, Item, outline, shorten, to_plain
from datastates.containers import CONTAINERS
from datastates.provider import LeafRef
from datastates.registry import Providers, installed
from datastates.tree import Node, flatten, pack, unpack


@dataclass
class Config:
    depth: int
    name: str


class Color(enum.Enum):
    RED = 1


Point = namedtuple("Point", "x y")

ARRAY = "an array"

VALUES: dict[str, tuple[Any, Any]] = {
    "plain": ([None, True, 1, 2.5, "text"], [None, True, 1, 2.5, "text"]),
    "bytes": (b"ab", "b'ab'"),
    "a large int": (2**300, "0x100000000000000000… (301 bits)"),
    "int keys": ({0: "a", 1: "b"}, {"0": "a", "1": "b"}),
    "keys that look alike": ({0: "a", "0": "b"}, [["0", "a"], ["0", "b"]]),
    "tuple keys": ({(1, "x"): "a"}, {"(1, 'x')": "a"}),
    "a key of ours": ({"$": 1}, {"$": 1}),
    "tuple": ((1, (2, 3)), [1, [2, 3]]),
    "set": ({7}, [7]),
    "deque": (deque([1, 2], 3), [1, 2]),
    "OrderedDict": (OrderedDict(a=1), {"a": 1}),
    "defaultdict": (defaultdict(list, a=[1]), {"a": [1]}),
    "Counter": (Counter("aab"), {"a": 2, "b": 1}),
    "dataclass": (Config(3, "x"), {"depth": 3, "name": "x"}),
    "namedtuple": (Point(1, 2), {"x": 1, "y": 2}),
    "enum": (Color.RED, f"{__name__}.Color.RED"),
    "complex": (1 - 2j, "complex(1.0, -2.0)"),
    "datetime": (dt.datetime(2026, 1, 31), "datetime(2026, 1, 31, 0, 0, 0, 0, 0, None)"),
    "path": (pathlib.PurePosixPath("/a"), "PurePosixPath('/a')"),
    "decimal": (decimal.Decimal("-1.5"), "Decimal(1, [1, 5], -1)"),
    "slice": (slice(1, None), "slice(1, None, None)"),
    "ellipsis": (..., "Ellipsis"),
    "uuid": (uuid.UUID(bytes=b"0123456789abcdef"), "UUID(b'0123456789abcdef')"),
    "a pickle": (ds.Pickled(object), "a pickle"),
    "numpy scalar": (np.float32(1.5), "np.float32(1.5)"),
    "bfloat16 scalar": (ml_dtypes.bfloat16(1.5), "1.5"),
    "numpy dtype": (np.dtype("<i4"), "dtype('int32')"),
    "torch.Size": (torch.Size([1, 2]), "torch.size([1, 2])"),
    "torch.dtype": (torch.float16, "torch.float16"),
    "torch.device": (torch.device("cpu"), "torch.device('cpu')"),
    "array": (np.zeros(3), ARRAY),
    "tensor": (torch.nn.Parameter(torch.zeros(3)), ARRAY),
    "long text": ("x" * 100_000, ARRAY),
    "long list": (list(range(5000)), ARRAY),
    "module": (torch.nn.Linear(2, 2, bias=False), {"weight": ARRAY}),
}


def read(value: object) -> Item:
    providers = Providers([*CONTAINERS, *installed()])
    return outline(unpack(pack(flatten(value, providers).skeleton)))


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_read_as_what_it_is(name: str) -> None:
    value, expected = VALUES[name]

    found = to_plain(read(value), lambda ref: ARRAY)

    assert found == expected


def test_a_generator_is_read_as_its_state() -> None:
    assert "PCG64" in str(to_plain(read(np.random.default_rng(0)), lambda ref: ARRAY))


def test_what_another_provider_wrote_is_shown_as_it_is() -> None:
    node = Node("zstd", {"level": 3, "data": LeafRef(0)})

    found = outline({"x": node})

    assert to_plain(found, lambda ref: ARRAY) == {"x": {"level": 3, "data": ARRAY}}
    assert isinstance(found, Group) and found.items[0][1] == Group(
        "zstd", (("level", 3), ("data", LeafRef(0))), True
    )


@pytest.mark.parametrize(
    "data",
    [None, 3, "x", b"x", [], [1], ["enum"], [1, 2, 3], [[1]], {}, {"state": 1}, {"array": []}],
)
@pytest.mark.parametrize(
    "provider", ["dict", "tuple", "tensor", "objects", "torch", "dataclass", "rng"]
)
def test_malformed_data_is_shown_all_the_same(provider: str, data: Any) -> None:
    found = outline(Node(provider, data))

    assert shorten(found) and to_plain(found, lambda ref: ARRAY) is not Ellipsis


def test_nesting_without_end_is_cut() -> None:
    deep: Any = 1
    for _ in range(300):
        deep = Node("dict", [[deep, deep]]) if isinstance(deep, int) else [Node("tuple", [deep])]

    assert "…" in str(to_plain(outline(deep), lambda ref: ARRAY))


@pytest.mark.parametrize(
    "value",
    ["x" * 1000, b"x" * 1000, list(range(1000)), {str(i): i for i in range(1000)}, 10**3000],
)
def test_a_long_value_is_one_short_line(value: Any) -> None:
    assert len(shorten(read(value))) < 100
