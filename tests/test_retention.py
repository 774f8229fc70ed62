"""What stays and what goes: the rules alone, then the rules at work while saves go on."""

import math
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import datastates as ds
from datastates.retention import Candidate, Retention, rank_best
from datastates.testing import CountingTier, Fault, FaultyTier, GatedTier
from datastates.tiers.memory import MemoryTier
from datastates.tiers.zarr import ZarrTier

NAN, INF = math.nan, math.inf


def memory() -> MemoryTier:
    return MemoryTier(str(uuid4()))


def candidates(losses: Sequence[float | None]) -> list[Candidate]:
    return [Candidate(i, {} if x is None else {"loss": x}) for i, x in enumerate(losses)]


def kept(rules: Retention, steps: Sequence[Candidate], **options: Any) -> list[int]:
    gone = rules.expired(steps, **options)
    assert gone == sorted(gone)
    return [c.step for c in steps if c.step not in gone]


# The rules.


def test_without_a_rule_everything_stays() -> None:
    assert kept(Retention(), candidates([1.0] * 50)) == list(range(50))


def test_the_last_two_and_every_thousandth_stay() -> None:
    """Case 98."""
    steps = [Candidate(step, {}) for step in range(0, 3001, 10)]
    assert kept(Retention(keep_last=2, keep_every=1000), steps) == [0, 1000, 2000, 2990, 3000]


def test_the_newest_always_stays() -> None:
    """Cases 90 and 96: whatever the metric says."""
    worse_each_step = candidates([1.0, 2.0, 3.0, 4.0, 5.0])
    assert kept(Retention(keep_best=("loss", "min", 2)), worse_each_step) == [0, 1, 4]
    assert kept(Retention(keep_every=3), worse_each_step) == [0, 3, 4]


@pytest.mark.parametrize(
    ("losses", "mode", "best"),
    [
        ([NAN, 3.0, NAN, 2.0, INF], "min", [3, 1]),
        ([NAN, 3.0, NAN, 2.0, -INF], "max", [1, 3]),
        ([1.0, 1.0, 1.0], "min", [2, 1, 0]),
        ([-0.0, 0.0], "max", [1, 0]),
        ([NAN, None, INF], "min", []),
        ([None, 5.0], "max", [1]),
    ],
)
def test_the_best_is_finite_and_of_equals_the_later(
    losses: list[float | None], mode: Any, best: list[int]
) -> None:
    """Cases 91 and 92."""
    assert rank_best(candidates(losses), "loss", mode) == best


def test_spared_steps_stay_whatever_the_rules_say() -> None:
    assert kept(Retention(keep_last=1), candidates([1.0] * 5), spared=[1, 9]) == [1, 4]


@given(
    st.lists(st.one_of(st.none(), st.floats()), max_size=30),
    st.one_of(st.none(), st.integers(1, 5)),
    st.one_of(st.none(), st.integers(1, 5)),
    st.one_of(st.none(), st.integers(1, 5)),
)
def test_each_rule_keeps_what_it_says_and_no_more_goes_than_that(
    losses: list[float | None], last: int | None, every: int | None, best: int | None
) -> None:
    steps = candidates(losses)
    rules = Retention(last, every, None if best is None else ("loss", "max", best))
    stay = set(kept(rules, steps))
    asked = set(range(len(losses))[-(last or 1) :])
    asked |= {step for step in range(len(losses)) if every and step % every == 0}
    asked |= set(rank_best(steps, "loss", "max")[: best or 0])
    assert stay == (asked if last or every or best else set(range(len(losses))))


@pytest.mark.parametrize(
    "rules",
    [
        *({"keep_last": n} for n in (0, -1, 1.5, True, "2")),
        *({"keep_every": n} for n in (0, -1000, 2.0)),
        *({"keep_best": x} for x in ("loss", ("loss",), ("loss", "least", 1), ("loss", "min", 0))),
        *({"keep_best": x} for x in (("loss", "min", 2.0), (1, "min", 2), ["loss", "min", 2])),
    ],
    ids=str,
)
def test_a_rule_that_makes_no_sense_is_refused_by_name(rules: dict[str, Any]) -> None:
    with pytest.raises(ds.UsageError, match=next(iter(rules))):
        ds.Checkpointer("nowhere", **rules)


# At work.


@pytest.mark.parametrize("keep_last", [1, 2])
def test_after_each_of_many_saves_exactly_the_best_and_the_newest_are_there(keep_last: int) -> None:
    """Case 89: the best is step 3 from then on."""
    losses = [9.0, 8.0, 7.0, 0.5, *(6.0 + i for i in range(16))]
    with ds.Checkpointer(memory(), keep_last=keep_last, keep_best=("loss", "min", 1)) as ckpt:
        for step, loss in enumerate(losses):
            ckpt.save({"step": step}, step=step, metrics={"loss": loss})
            ckpt.wait()
            newest = range(max(0, step - keep_last + 1), step + 1)
            assert ckpt.steps() == sorted({min(step, 3), *newest})
            assert ckpt.latest() == step
        assert ckpt.best() == 3
        assert ckpt.restore(step=3) == {"step": 3}


def test_a_metric_that_worsens_evicts_only_the_middle() -> None:
    """Case 90."""
    with ds.Checkpointer(memory(), keep_best=("loss", "min", 2)) as ckpt:
        for step in range(6):
            ckpt.save(step, step=step, metrics={"loss": float(step)})
            ckpt.wait()
            assert ckpt.latest() == step
            assert ckpt.steps() == sorted({*range(min(step + 1, 2)), step})


def test_the_limit_holds_over_a_restart(tmp_path: Path) -> None:
    """Case 94: what an earlier process saved counts as well."""
    for run in range(2):
        with ds.Checkpointer(tmp_path, keep_last=3) as ckpt:
            for step in range(3):
                ckpt.save(step, step=3 * run + step)
    with ds.Checkpointer(tmp_path) as ckpt:
        assert ckpt.steps() == [3, 4, 5]


def test_the_best_is_the_same_after_a_restart(tmp_path: Path) -> None:
    """Case 92: ties are decided by the step, which lies on the disk."""
    with ds.Checkpointer(tmp_path, keep_best=("loss", "min", 1)) as ckpt:
        for step in (5, 7, 6):
            ckpt.save(step, step=step, metrics={"loss": 1.0})
        assert ckpt.best() == 7
    with ds.Checkpointer(tmp_path) as ckpt:
        assert ckpt.best("loss", "min") == ckpt.best("loss", "max") == 7
        assert ckpt.steps() == [6, 7], "6 was saved last, and spared"


def test_with_no_finite_metric_the_newest_is_best_and_that_is_said() -> None:
    """Case 91."""
    with ds.Checkpointer(memory(), keep_best=("loss", "min", 1)) as ckpt:
        for step in range(3):
            ckpt.save(step, step=step, metrics={"loss": NAN})
        with pytest.warns(
            RuntimeWarning, match="no step has a finite 'loss': taking the newest, 2"
        ):
            assert ckpt.best() == 2


def test_a_step_that_was_saved_late_is_spared_until_the_next_one() -> None:
    """Case 97: `save(5)` after `save(100)` under keep_last=1 is there when its handle says so."""
    with ds.Checkpointer(memory(), keep_last=1) as ckpt:
        ckpt.save(1, step=100)
        ckpt.save(2, step=5)
        ckpt.wait()
        assert ckpt.steps() == [5, 100] and ckpt.latest() == 100


def test_pruning_by_hand_applies_the_rules_now(tmp_path: Path) -> None:
    with ds.Checkpointer(tmp_path) as ckpt:
        for step in range(5):
            ckpt.save(step, step=step)
        assert ckpt.prune() == []
    with ds.Checkpointer(tmp_path, keep_last=2) as ckpt:
        assert ckpt.prune(dry_run=True) == [0, 1, 2]
        assert ckpt.steps() == [0, 1, 2, 3, 4]
        assert ckpt.prune() == [0, 1, 2]
        assert ckpt.steps() == [3, 4]


def test_an_older_save_of_a_step_goes_when_the_new_one_is_committed(tmp_path: Path) -> None:
    with ds.Checkpointer(tmp_path) as ckpt:
        for value in range(3):
            ckpt.save(value, step=5)
        ckpt.wait()
        assert ckpt.restore() == 2 and ckpt.steps() == [5]
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000005.2"]


# What may go wrong meanwhile.


def test_nothing_is_removed_before_the_next_step_is_committed() -> None:
    """Case 87: whatever the moment, the old step or the new one is there."""
    tier = GatedTier(memory(), "begin", "write", "seal", "commit", free=4)
    with ds.Checkpointer(tier, keep_last=1) as ckpt, tier:
        ckpt.save({"a": np.zeros(100)}, step=1)
        save = ckpt.save_async({"a": np.ones(100)}, step=2)
        assert tier.reached.wait(30)
        assert ckpt.steps() == [1] and not ckpt.restore()["a"].any()
        tier.gate.set()
        save.result(30)
        ckpt.wait(30)
        assert ckpt.steps() == [2] and ckpt.restore()["a"].all()


def test_a_failed_save_removes_nothing() -> None:
    tier = FaultyTier(memory(), Fault("commit", ds.StorageError("no"), nth=2, again=True))
    ckpt = ds.Checkpointer(tier, keep_last=1)
    ckpt.save("good", step=1)
    with pytest.raises(ds.SaveError):
        ckpt.save("lost", step=2)
    assert ckpt.steps() == [1] and ckpt.restore() == "good"
    ckpt.close()


READ_ALL_THE_WHILE = """
import sys
import datastates as ds
ckpt = ds.Checkpointer(sys.argv[1])
print("reading", flush=True)
seen = set()
while max(seen, default=0) < int(sys.argv[2]):
    state = ckpt.restore()
    step = ckpt.recovery.step
    assert (state["a"] == step).all() and state["step"] == step, f"step {step} is not whole"
    seen.add(step)
print(len(seen), flush=True)
"""


def test_a_reader_in_another_process_finds_a_whole_step_at_each_moment(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    """Case 87: with keep_last=1, while steps come and go."""
    last = 25
    with ds.Checkpointer(tmp_path, keep_last=1) as ckpt:
        ckpt.save({"a": np.full(200_000, 1.0), "step": 1}, step=1)
        reader = start(READ_ALL_THE_WHILE, tmp_path, last)
        assert reader.line() == "reading"
        for step in range(2, last + 1):
            ckpt.save({"a": np.full(200_000, float(step)), "step": step}, step=step)
        assert int(reader.line()) >= 1
    reader.end()


def test_a_step_removed_by_hand_is_no_error(tmp_path: Path) -> None:
    """Case 95, first half."""
    with ds.Checkpointer(tmp_path, keep_last=2) as ckpt:
        for step in range(2):
            ckpt.save(step, step=step)
        ckpt.wait()  # or our own sweep would remove what is half removed by hand
        shutil.rmtree(tmp_path / "step-0000000000")
        ckpt.save(2, step=2)
        ckpt.save(3, step=3)
        ckpt.wait()
        assert ckpt.steps() == [2, 3]


def test_a_step_that_cannot_be_removed_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Case 95, second half: and it is tried again at the next commit."""
    busy = ds.StorageError("cannot remove step-2: busy")
    with ds.Checkpointer(FaultyTier(memory(), Fault("delete", busy)), keep_last=1) as ckpt:
        for step in (1, 2):
            ckpt.save(step, step=step)
        ckpt.wait()
        assert ckpt.steps() == [1, 2]
        assert "cannot remove step 1 now" in caplog.text
        ckpt.save(3, step=3)
        ckpt.wait()
        assert ckpt.steps() == [3]


def test_an_immutable_step_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Case 95, for real: the record cannot be unlinked, so the step stays as whole as it was."""
    with ds.Checkpointer(tmp_path, keep_last=1) as ckpt:
        ckpt.save({"a": np.ones(9)}, step=1)
        step = tmp_path / "step-0000000001"
        found = subprocess.run(["chattr", "+i", str(step)], capture_output=True, check=False)
        if found.returncode:
            pytest.skip(f"cannot make a directory immutable here: {found.stderr.decode()}")
        try:
            ckpt.save({"a": np.ones(9)}, step=2)
            ckpt.wait()
            assert ckpt.steps() == [1, 2] and ckpt.verify(1).ok
            assert "cannot remove step 1 now" in caplog.text
        finally:
            subprocess.run(["chattr", "-i", str(step)], check=True)
        ckpt.save({"a": np.ones(9)}, step=3)
        ckpt.wait()
        assert ckpt.steps() == [3]


@pytest.mark.parametrize("method", ["entries", "sweep", "info"])
def test_storage_that_cannot_be_looked_at_keeps_everything(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    tier = FaultyTier(memory())
    with ds.Checkpointer(tier, keep_last=1, keep_best=("loss", "min", 1)) as ckpt:
        ckpt.save(1, step=1, metrics={"loss": 1.0})
        ckpt.wait()
        tier.faults.append(Fault(method, ds.StorageError("no answer"), again=True))
        ckpt.save(2, step=2, metrics={"loss": 2.0})
        ckpt.wait()
        tier.faults.clear()
        assert ckpt.steps() == [1, 2]
        assert "no answer" in caplog.text


def test_a_damaged_newest_step_does_not_cost_the_last_good_one(tmp_path: Path) -> None:
    """The step that restore had to fall back to stays until a newer one is committed."""
    with ds.Checkpointer(tmp_path) as ckpt:
        for step in (1, 2):
            ckpt.save({"a": np.full(100_000, step)}, step=step)
    (file,) = (tmp_path / "step-0000000002/a").glob("c*")
    data = bytearray(file.read_bytes())
    data[1000] ^= 1
    file.write_bytes(data)
    with ds.Checkpointer(tmp_path, keep_last=1) as ckpt:
        with pytest.warns(RuntimeWarning, match="falling back to step 1"):
            ckpt.restore()
        assert ckpt.prune() == []
        assert ckpt.steps() == [1, 2]
        ckpt.save({"a": np.full(100_000, 3)}, step=3)
        ckpt.wait()
        assert 1 not in ckpt.steps() and ckpt.latest() == 3
        assert (ckpt.restore()["a"] == 3).all()


def test_halves_go_and_good_steps_stay(tmp_path: Path) -> None:
    """Case 88: three half-written steps of dead savers, one of a live one, three good ones."""
    with ds.Checkpointer(tmp_path) as ckpt:
        for step in (1, 3, 5):
            ckpt.save({"a": np.ones(100)}, step=step)
    for step in (2, 4, 6):  # no record, no lease: its saver is dead
        half = tmp_path / f"step-000000000{step}"
        shutil.copytree(tmp_path / "step-0000000001", half)
        (half / "zarr.json").unlink()
    live = GatedTier(ZarrTier(str(tmp_path)), "seal")
    with ds.Checkpointer(live) as other, live:
        other.save_async({"a": np.ones(100)}, step=7)
        assert live.reached.wait(30)
        with ds.Checkpointer(tmp_path, keep_last=2) as ckpt:
            assert ckpt.prune() == [1]
            assert ckpt.steps() == [3, 5]
            there = {path.name for path in tmp_path.iterdir() if path.is_dir()}
            assert there == {f"step-000000000{step}" for step in (3, 5, 7)}
        live.gate.set()
    with ds.Checkpointer(tmp_path) as ckpt:
        assert ckpt.latest() == 7 and ckpt.verify(7).ok


def test_a_step_that_another_process_removed_meanwhile_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Between the listing and the reading of its record."""
    tier = FaultyTier(memory())
    with ds.Checkpointer(tier) as ckpt:
        for step in range(3):
            ckpt.save(step, step=step, metrics={"loss": float(step)})
        ckpt.wait()
        tier.faults.append(Fault("info", ds.StepNotFoundError("gone", step=0)))
        assert ckpt.best("loss") == 1
    assert caplog.text == ""


def test_two_who_prune_at_once_do_not_meet(tmp_path: Path) -> None:
    with ds.Checkpointer(tmp_path) as ckpt:
        for step in range(20):
            ckpt.save({"a": np.ones(10), "b": np.ones(10)}, step=step)
    pruners = [ds.Checkpointer(tmp_path, keep_last=3) for _ in range(3)]
    barrier = threading.Barrier(3)
    failures: list[BaseException] = []

    def prune(pruner: ds.Checkpointer) -> None:
        try:
            barrier.wait(30)
            pruner.prune()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=prune, args=(pruner,)) for pruner in pruners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert pruners[0].steps() == [17, 18, 19]
    assert len(list(tmp_path.iterdir())) == 3


def test_old_records_are_not_read_again() -> None:
    """keep_best looks at every step after each commit, and reads only what is new.

    A step that is committed while the one before is still pruning is looked at by both.
    """
    tier = CountingTier(memory())
    with ds.Checkpointer(tier, keep_best=("loss", "min", 100)) as ckpt:
        for step in range(20):
            ckpt.save(step, step=step, metrics={"loss": 1.0})
        ckpt.wait()
        assert 20 <= tier.calls["info"] <= 40, "and not 210"


def test_records_are_not_read_where_no_rule_needs_them() -> None:
    """Thousands of steps, each with a long document: not for counting them."""
    tier = CountingTier(memory())
    with ds.Checkpointer(tier, keep_last=5, keep_every=4) as ckpt:
        for step in range(20):
            ckpt.save(step, step=step, metrics={"loss": 1.0})
        ckpt.wait()
        assert ckpt.steps() == [0, 4, 8, 12, 15, 16, 17, 18, 19]
        assert tier.calls["info"] == 0
