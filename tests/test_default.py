"""One checkpointer for the whole process: `datastates.configure`, `save_async`, `restore`."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import torch

import datastates as ds
from datastates.testing import Fault, FaultyTier, GatedTier
from datastates.tiers.memory import MemoryTier


@pytest.fixture(autouse=True)
def nothing_configured() -> Iterator[None]:
    """Leave a closed default behind; what a test configures is its own."""
    yield
    ds.configure(MemoryTier(str(uuid4()))).close()


def test_saving_before_configuring_says_what_to_do(start: object) -> None:
    script = start(  # type: ignore[operator] # a process of its own: nothing was configured there
        """
        import datastates as ds
        for call in (lambda: ds.save_async({"a": 1}), ds.restore):
            try:
                call()
            except ds.UsageError as error:
                print(error, flush=True)
        """
    )
    assert [script.line(), script.line()] == [
        'say where checkpoints go first: datastates.configure("runs/name")'
    ] * 2
    script.end()


def test_the_default_is_a_checkpointer_like_any(tmp_path: Path) -> None:
    ckpt = ds.configure(tmp_path / "run", keep_last=2)
    for step in range(3):
        ds.save_async({"t": torch.full((3,), float(step))}, step=step, metrics={"loss": 1.0})
    ckpt.wait()
    assert ckpt.steps() == [1, 2]
    into = {"t": torch.zeros(3)}
    assert ds.restore(into) is into and into["t"].tolist() == [2.0] * 3
    assert ds.restore(step=1, only=["t"])["t"].tolist() == [1.0] * 3


def test_configuring_again_closes_the_earlier_one() -> None:
    tier = GatedTier(MemoryTier(str(uuid4())), "write", "seal", "commit")
    with tier:
        first = ds.configure(tier)
        save = ds.save_async({"a": torch.ones(5)}, step=1)
        assert tier.reached.wait(30)
        tier.gate.set()
        second = ds.configure(MemoryTier(str(uuid4())))
        assert save.done(), "the earlier one finishes what it has begun"
    with pytest.raises(ds.ClosedError):
        first.save_async(1)
    assert ds.save_async(2).result(30).step == 0
    assert second.steps() == [0] and first.steps() == [1]


def test_a_wrong_call_leaves_the_earlier_one() -> None:
    ckpt = ds.configure(MemoryTier(str(uuid4())))
    for wrong in (lambda: ds.configure("", keep_last=1), lambda: ds.configure("x", keep_last=0)):
        with pytest.raises(ds.UsageError):
            wrong()
    ds.save_async("kept", step=4).result(30)
    assert ckpt.steps() == [4]


def test_a_lost_save_of_the_earlier_one_is_raised_and_the_new_one_is_set() -> None:
    ds.configure(FaultyTier(MemoryTier(str(uuid4())), Fault("seal", ds.StorageError("broken"))))
    ds.save_async(1, step=1)
    with pytest.raises(ds.SaveError, match="broken"):
        ds.configure(MemoryTier(str(uuid4())))
    assert ds.save_async(2, step=7).result(30).step == 7
    assert ds.restore() == 2
