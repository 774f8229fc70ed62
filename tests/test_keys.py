"""Keys of any kind come back with their types and their order, in memory and on disk."""

import dataclasses
import datetime as dt
import enum
import math
import pathlib
from typing import NamedTuple

import pytest
import torch
from support import assert_same, nan_with_payload

import datastates as ds


class Color(enum.Enum):
    GREEN = (1, 2)


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    name: str


KEYS = {
    "empty": "",
    "slash": "a/b",
    "dots": "..",
    "dot": ".",
    "hidden": ".datastates",
    "zarr": "zarr.json",
    "chunk": "c",
    "dunder": "__x__",
    "dollar": "$",
    "dollar v": "v",
    "tilde": "a~b",
    "percent": "%2F",
    "percent underscore": "%_",
    "digits": "0",
    "negative digits": "-0",
    "unicode": "ключ/🙂",
    "arabic digits": "٣",
    "surrogate": "\ud800",
    "nul": "\0",
    "newline": "a\nb",
    "space": " ",
    "backslash": "a\\b",
    "device name": "CON",
    "long": "k" * 400,
    "long unicode": "ю" * 300,
    "int": 0,
    "negative": -1,
    "big": 2**70,
    "huge": 10**5000,
    "none": None,
    "true": True,
    "float": 1.5,
    "minus zero": -0.0,
    "nan": math.nan,
    "infinity": -math.inf,
    "bytes": b"\0key",
    "tuple": (1, ("a", None)),
    "empty tuple": (),
    "enum": Color.GREEN,
    "frozenset": frozenset({1, 2}),
    "complex": 1j,
    "path": pathlib.PurePosixPath("a/b"),
    "date": dt.date(2024, 1, 1),
    "named tuple": Point(1, 2),
    "frozen dataclass": Frozen("x"),
    "dtype": torch.bfloat16,
    "ellipsis": ...,
    "range": range(3),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_key_comes_back_with_its_type(ckpt, name):
    key = KEYS[name]
    state = {"plain": {key: 1}, "tensor": {key: torch.ones(2)}, "deep": {key: {key: [1]}}}
    ckpt.save(state)
    assert_same(state, ckpt.restore())


@pytest.mark.parametrize("name", KEYS)
def test_a_key_may_be_at_the_top(disk_ckpt, name):
    state = {KEYS[name]: torch.ones(2), "other": {KEYS[name]: torch.zeros(3)}}
    disk_ckpt.save(state)
    assert_same(state, disk_ckpt.restore())


def test_all_keys_at_once_keep_their_order_and_their_values(ckpt):
    """None of them collides with another one on disk."""
    keys = list(KEYS.values())
    state = {"x": {key: torch.full((3,), float(i)) for i, key in enumerate(keys)}}
    ckpt.save(state)
    assert_same(state, ckpt.restore())


def test_keys_that_look_alike_are_kept_apart(ckpt):
    """0 and "0" and (0,) and "(0,)"; and a key made to collide with an escaped one."""
    keys = [0, "0", (0,), "(0,)", b"0", "b'0'", "%30", "a/b", "a%2Fb", "a~b", "a~~2", "k" * 400]
    state = {key: torch.full((2,), float(i)) for i, key in enumerate(keys)}
    state["k" * 399 + "l"] = torch.ones(1)
    state["a"] = {"b": torch.zeros(1), "~b": torch.ones(1)}
    ckpt.save(state)
    assert_same(state, ckpt.restore())


@pytest.mark.parametrize("keys", [(True, 2), (1, 2), (1.0, 2), (False, 0.5)])
def test_equal_keys_come_back_with_the_type_they_had(memory_ckpt, keys):
    state = {"x": dict.fromkeys(keys, "v")}
    memory_ckpt.save(state)
    assert_same(state, memory_ckpt.restore())


def test_two_nan_keys_are_two_keys(ckpt):
    """Also on disk, where both have one name to begin with."""
    state = {float("nan"): torch.zeros(1), nan_with_payload(3): torch.ones(1), float("nan"): 2}
    ckpt.save(state)
    assert_same(state, ckpt.restore())


@pytest.mark.parametrize("key", [torch.ones(1), torch.tensor(1), "x" * 100_000, b"x" * 100_000])
def test_a_key_that_is_an_array_or_endless_is_refused_by_name(memory_ckpt, key):
    with pytest.raises(ds.UnsupportedValueError, match=r"cannot save model: a key of type"):
        memory_ckpt.save_async({"model": {key: 1, 0: 2}})
