"""Containers in containers come back as deep as they are accepted; cycles are refused."""

import dataclasses
import gc
import inspect
import sys
import types
from collections import OrderedDict, defaultdict, deque
from time import monotonic
from typing import Any, NamedTuple

import pytest
from support import assert_same

import datastates as ds


class Point(NamedTuple):
    x: Any
    y: Any = 0


@dataclasses.dataclass
class Config:
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    name: str
    inner: Any = None


def nested(wrap, depth):
    value: Any = "deep"
    for _ in range(depth):
        value = wrap(value)
    return value


WRAPS = {
    "list": lambda v: [v],
    "dict": lambda v: {"k": v},
    "int keys": lambda v: {1: v},
    "tuple": lambda v: (v,),
    "deque": lambda v: deque([v]),
    "defaultdict": lambda v: defaultdict(list, {1: v}),
    "OrderedDict": lambda v: OrderedDict(a=v),
    "dataclass": lambda v: Frozen("n", v),
    "named tuple": Point,
    "frozenset": lambda v: frozenset([v]),
    "slice": slice,
}


@pytest.mark.parametrize("name", WRAPS)
def test_deep_nesting_comes_back(memory_ckpt, name):
    """As deep as is accepted at the call, whatever the containers."""
    value = nested(WRAPS[name], 63)
    memory_ckpt.save(value)
    assert_same(value, memory_ckpt.restore())


@pytest.mark.parametrize("name", WRAPS)
@pytest.mark.parametrize("depth", [65, 5_000])
def test_deeper_nesting_is_refused_at_once_and_by_name(memory_ckpt, name, depth):
    """Case 22: within a second, and the checkpointer works on."""
    value = nested(WRAPS[name], depth)
    started = monotonic()
    with pytest.raises(ds.NestingError, match=r"cannot save (log|.*…)") as refused:
        memory_ckpt.save_async({"log": value})
    assert monotonic() - started < 1
    assert refused.value.key.startswith("log")
    memory_ckpt.save({"fine": 1})
    assert memory_ckpt.restore() == {"fine": 1}
    del refused
    while isinstance(value, tuple | list) and value:  # freeing it in one go is deep, too
        value = value[0]


def cycles():
    a_dict: dict[str, Any] = {}
    a_dict["me"] = a_dict
    a_list: list[Any] = [1]
    a_list.append((a_list,))
    a_deque: deque[Any] = deque()
    a_deque.append({1: a_deque})
    an_object = types.SimpleNamespace()
    an_object.me = [an_object]
    a_config = Config()
    a_config.extra["self"] = a_config
    return {
        "dict": (a_dict, "state/me"),
        "list": (a_list, "state/1/0"),
        "deque": (a_deque, "state/0/1"),
        "namespace": (an_object, "state/me/0"),
        "dataclass": (a_config, "state/extra/self"),
    }


@pytest.mark.parametrize("name", cycles())
def test_a_cycle_is_refused_by_name(memory_ckpt, name):
    """Case 22."""
    value, key = cycles()[name]
    with pytest.raises(ds.NestingError, match="contains itself") as refused:
        memory_ckpt.save_async({"state": value})
    assert refused.value.key == key
    memory_ckpt.save({"fine": 1})
    gc.collect()


def test_one_list_twice_is_no_cycle(memory_ckpt):
    shared = [1, 2]
    memory_ckpt.save({"a": shared, "b": [shared, shared]})
    assert memory_ckpt.restore() == {"a": [1, 2], "b": [[1, 2], [1, 2]]}


def test_a_call_deep_in_the_stack_is_refused_rather_than_fatal(memory_ckpt):
    def deep(n):
        return deep(n - 1) if n else memory_ckpt.save_async({"a": nested(WRAPS["int keys"], 60)})

    room = sys.getrecursionlimit() - len(inspect.stack())
    with pytest.raises(ds.NestingError, match="stack is too deep"):
        deep(room - 60)
    memory_ckpt.save({"fine": 1})
