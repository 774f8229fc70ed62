"""Nothing is saved that could not be read again: what reading refuses, saving refuses."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import datastates as ds

MAX_DEPTH = 64


@dataclass
class Resource:
    """Its end would run on whatever a file gives it."""

    name: str

    def __del__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({("x" * 70_000, 1): 2}, "key"),
        ({frozenset({b"x" * 70_000}): 2}, "key"),
        (Fraction(1 << 140_000, 3), "bits"),
        (np.random.default_rng([1 << 300_000]), "seeds"),
        (torch.zeros([1] * 65), "65 dimensions"),
        (Resource("x"), "no provider"),
    ],
)
def test_what_could_not_be_read_again_is_refused_with_its_path(
    memory_ckpt: ds.Checkpointer, value: Any, reason: str
) -> None:
    with pytest.raises(ds.UnsupportedValueError, match=f"a/b.*{reason}"):
        memory_ckpt.save_async({"a": {"b": value}})


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"x": found}
    return found


def test_a_state_as_deep_as_is_saved_is_restored(ckpt: ds.Checkpointer) -> None:
    deepest = nested(MAX_DEPTH - 1)
    ckpt.save({"a": 1} | deepest)
    assert ckpt.restore() == {"a": 1} | deepest
    tuples: Any = 1
    for _ in range(MAX_DEPTH - 1):
        tuples = (tuples,)
    ckpt.save({"t": tuples})
    assert ckpt.restore() == {"t": tuples}
    with pytest.raises(ds.NestingError):
        ckpt.save_async({"t": (tuples,)})


def test_metadata_as_deep_as_is_saved_is_read(ckpt: ds.Checkpointer) -> None:
    deepest = nested(MAX_DEPTH - 1)
    ckpt.save({"x": 1}, step=1, metadata=deepest)
    assert ckpt.info(1).metadata == deepest
    with pytest.raises(ds.UsageError, match="metadata nests over 64 deep"):
        ckpt.save_async({"x": 1}, step=2, metadata=nested(MAX_DEPTH))


@pytest.mark.parametrize(
    "make",
    [
        lambda: [[] for _ in range(600_000)],
        lambda: [["x" * 60_000, ()] for _ in range(150)],
    ],
    ids=["too many containers", "too long"],
)
def test_a_state_that_takes_too_much_to_read_is_refused_at_the_call(
    ckpt: ds.Checkpointer, make: Callable[[], Any]
) -> None:
    ckpt.save({"x": 1}, step=1)
    with pytest.raises(ds.StateError, match="arrays"):
        ckpt.save_async({"x": make()}, step=2)
    assert ckpt.steps() == [1] and ckpt.restore() == {"x": 1}


def test_a_record_that_would_be_too_long_costs_that_save_only(disk_ckpt: ds.Checkpointer) -> None:
    metrics = {f"a rather long name of a metric, number {i}": 1.0 for i in range(200_000)}
    with pytest.raises(ds.SaveError, match="metrics"):
        disk_ckpt.save({"x": 1}, step=1, metrics=metrics)
    disk_ckpt.save({"x": 1}, step=2)
    assert disk_ckpt.steps() == [2]


def test_thousands_of_ties_keep_the_record_short(disk_ckpt: ds.Checkpointer) -> None:
    rows = np.arange(6000.0).reshape(3000, 2)
    disk_ckpt.save({"all": rows, "rows": list(rows)}, step=1)
    assert disk_ckpt.info(1).step == 1
    found = disk_ckpt.restore()
    assert np.shares_memory(found["all"], found["rows"][2999])
    assert all(np.array_equal(row, back) for row, back in zip(rows, found["rows"], strict=True))
