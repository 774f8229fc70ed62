"""The pipeline's promises: bounded memory, an unhurt caller, no thread that ends by a fault."""

import gc
import logging
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
import pytest

import datastates as ds
from datastates.arena import Arena
from datastates.errors import StorageTimeoutError
from datastates.job import Job
from datastates.pipeline import Pipeline
from datastates.plan import make_plan
from datastates.provider import ArrayLeaf, Bytes
from datastates.save import Save
from datastates.sources import ArraySource
from datastates.testing import CountingTier, Fault, FaultyTier, GatedTier, WrapperTier
from datastates.tier import Record, Tier
from datastates.tiers.memory import MemoryTier
from datastates.workers import run_all, within

MIB = 1 << 20
T = TypeVar("T")


class Panic(BaseException):
    """What a native extension raises: no `Exception`."""


def memory() -> MemoryTier:
    return MemoryTier(str(uuid4()))


def array(mib: int) -> np.ndarray[Any, Any]:
    return np.ones(mib * MIB, np.uint8)


class Source:
    """A source that does what the test wants."""

    def __init__(self, read: Callable[[Bytes], None]) -> None:
        self._read = read

    def read(self, start: int, out: Bytes) -> None:
        self._read(out)


def job(step: int, source: Any, nbytes: int = MIB) -> Job:
    leaves = [((f"leaf{step}",), ArrayLeaf("uint8", (nbytes,), source))]
    plan = make_plan(leaves, 8 * MIB)
    save = Save(step)
    save._planned(plan)
    return Job(save, plan, {}, [leaf for _, leaf in leaves], lambda: Record(step, 0, "now"))


@pytest.fixture
def pipeline(request: pytest.FixtureRequest) -> Any:
    made: list[Pipeline] = []

    def make(tier: Tier, **options: Any) -> Pipeline:
        committed = options.pop("committed", lambda entry, spared: None)
        made.append(Pipeline(tier, Arena(8 * MIB), committed, **options))
        return made[-1]

    yield make
    for each in made:
        each.close(30)


def good(step: int) -> Job:
    return job(step, ArraySource(array(1)))


# Streaming.


def test_several_writes_are_out_at_a_time() -> None:
    class Meeting(WrapperTier):
        barrier = threading.Barrier(4)

        def transfer(self, method: str, data: Bytes, call: Callable[[Bytes], None]) -> None:
            if method == "write":
                self.barrier.wait(30)
            call(data)

    with ds.Checkpointer(Meeting(memory()), arena_nbytes=8 * MIB) as ckpt:
        ckpt.save({f"part{i}": array(2) for i in range(8)})


def test_the_call_is_held_back_until_the_rest_of_the_state_fits() -> None:
    """A state five times the arena: the caller goes on when its end has been copied."""
    tier = GatedTier(memory(), "write")
    with ds.Checkpointer(tier, arena_nbytes=8 * MIB) as ckpt, tier:
        state = {"a": array(40)}
        returned: list[ds.Save] = []
        caller = threading.Thread(target=lambda: returned.append(ckpt.save_async(state)))
        caller.start()
        assert tier.reached.wait(30)
        caller.join(0.05)
        assert caller.is_alive()
        tier.gate.set()
        caller.join(30)
        state["a"][:] = 2
        stats = returned[0].result(30)
        assert 0.01 < stats.waited_s < stats.stalled_s
        assert (ckpt.restore()["a"] == 1).all()


def test_each_piece_is_written_once() -> None:
    tier = CountingTier(memory())
    with ds.Checkpointer(tier, arena_nbytes=8 * MIB) as ckpt:
        save = ckpt.save_async({"a": array(20), "b": [np.zeros(9) for _ in range(500)]})
        save.result(30)
        assert tier.nbytes["write"] == save.status.written_nbytes == save.status.nbytes
        assert tier.nbytes["write"] < 20 * MIB + 100_000


def test_thousands_of_small_tensors_are_a_few_writes() -> None:
    tier = CountingTier(memory())
    with ds.Checkpointer(tier) as ckpt:
        ckpt.save([np.full(100, i) for i in range(5000)])
        assert tier.calls["write"] <= 30


# Holding the caller back, and no longer than it may.


def test_an_arena_that_is_never_drained_costs_the_save_not_the_caller() -> None:
    tier = GatedTier(memory(), "write")
    with ds.Checkpointer(tier, arena_nbytes=8 * MIB, stall_timeout_s=0.2) as ckpt, tier:
        save = ckpt.save_async({"a": array(40)}, step=1)
        with pytest.raises(ds.SaveTimeoutError, match=r"step 1 failed .*: waited 0.2 s"):
            raise save.exception() or AssertionError("it should have failed")
        tier.gate.set()
        assert ckpt.save({"a": array(40)}, step=2).step == 2
        assert ckpt.steps() == [2]
        assert ckpt.statistics().arena.used_nbytes == 0


def test_a_save_behind_one_that_is_stuck_fails_by_the_same_deadline() -> None:
    """Two threads: the first is held by the arena, the second by the first."""
    tier = GatedTier(memory(), "write")
    with ds.Checkpointer(tier, arena_nbytes=8 * MIB, stall_timeout_s=0.5) as ckpt, tier:
        first: list[ds.Save] = []
        caller = threading.Thread(target=lambda: first.append(ckpt.save_async({"a": array(40)})))
        caller.start()
        assert tier.reached.wait(30)
        second = ckpt.save_async({"a": array(1)}, step=9)
        caller.join(30)
        assert isinstance(first[0].exception(), ds.SaveTimeoutError)
        assert isinstance(second.exception(), ds.SaveTimeoutError)
        tier.gate.set()
        ckpt.wait(30)
        assert second.done()
        assert ckpt.save({"a": array(1)}).nbytes == MIB


def test_a_save_behind_one_whose_copy_never_ends_is_refused(pipeline: Any) -> None:
    """A source that hangs (a device, a mapped file) holds its own caller, not the others."""
    tier, gate, copying = memory(), threading.Event(), threading.Event()

    def hang(out: Bytes) -> None:
        copying.set()
        gate.wait()

    made = pipeline(tier, stall_timeout_s=0.05)
    first, second = job(1, Source(hang)), good(2)
    caller = threading.Thread(target=made.submit, args=(first,))
    caller.start()
    assert copying.wait(30)
    made.submit(second)
    assert second.save.done() and second.save.stats.stalled_s >= 0.05
    with pytest.raises(ds.SaveTimeoutError, match="another save has been copying all the time"):
        second.save.result(0)
    gate.set()
    caller.join(30)
    assert first.save.result(30).step == 1
    assert [entry.step for entry in tier.entries()] == [1]


def test_closing_while_a_call_is_held_back_lets_that_save_finish() -> None:
    tier = GatedTier(memory(), "write")
    with tier:
        ckpt = ds.Checkpointer(tier, arena_nbytes=8 * MIB)
        saves: list[ds.Save] = []
        caller = threading.Thread(target=lambda: saves.append(ckpt.save_async({"a": array(40)})))
        caller.start()
        assert tier.reached.wait(30)
        with pytest.raises(ds.SaveTimeoutError):
            ckpt.close(timeout=0.01)
        tier.gate.set()
        caller.join(30)
        assert saves[0].result(30).nbytes == 40 * MIB


def test_no_memory_for_the_arena_costs_the_save_not_the_caller(tmp_path: Path) -> None:
    """More than there are addresses: what any system refuses."""
    with ds.Checkpointer(tmp_path, arena_nbytes=1 << 50) as ckpt:
        save = ckpt.save_async({"a": array(1)}, step=2)
        error = save.exception()
        assert error is not None and isinstance(error.__cause__, OSError)
        ckpt.wait(30)
        assert ckpt.steps() == []
        assert ckpt.statistics().failed == 1


# Faults.


@pytest.mark.parametrize("error", [RuntimeError("no"), Panic("native code"), SystemExit(3)])
def test_whatever_a_source_raises_fails_its_save_only(pipeline: Any, error: BaseException) -> None:
    def fail(out: Bytes) -> None:
        raise error

    tier = memory()
    made = pipeline(tier)
    bad = job(1, Source(fail))
    made.submit(bad)
    with pytest.raises(ds.SaveError, match="step 1") as caught:
        bad.save.result(30)
    assert caught.value.__cause__ is error
    for step in range(2, 8):  # more than there are threads
        made.submit(good(step))
    made.drain(30)
    assert [entry.step for entry in tier.entries()] == list(range(2, 8))
    assert (made.durable, made.failed) == (6, 1)


def test_a_handle_that_is_kept_does_not_keep_what_its_error_met(pipeline: Any) -> None:
    """Case 37: the frames of a traceback would hold the source, and so the state."""

    def fail(out: Bytes) -> None:
        raise RuntimeError("no")

    made = pipeline(memory())
    source = Source(fail)
    gone = weakref.ref(source)
    bad = job(1, source)
    made.submit(bad)
    made.drain(30)
    save = bad.save
    del bad, source
    gc.collect()
    assert gone() is None
    assert isinstance(save.exception(), ds.SaveError)


@pytest.mark.parametrize("method", ["begin", "write", "seal", "commit"])
def test_whatever_a_tier_raises_fails_its_save_only(pipeline: Any, method: str) -> None:
    inner = memory()
    made = pipeline(FaultyTier(inner, Fault(method, Panic("native code"))))
    bad = good(1)
    made.submit(bad)
    made.submit(good(2))
    made.drain(30)
    assert isinstance(bad.save.exception(), ds.SaveError)
    assert [entry.step for entry in inner.entries()] == [2]


def test_a_tier_that_cannot_abort_does_not_end_the_saver(
    pipeline: Any, caplog: pytest.LogCaptureFixture
) -> None:
    faults = Fault("seal", ds.StorageError("no")), Fault("abort", RuntimeError("never raises"))
    made = pipeline(FaultyTier(memory(), *faults))
    for step in (1, 2):
        made.submit(good(step))
    made.drain(30)
    assert (made.durable, made.failed) == (1, 1)
    assert "giving up step 1 failed" in caplog.text


def test_what_follows_a_commit_cannot_undo_it(
    pipeline: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(entry: ds.Entry, spared: set[int]) -> None:
        raise RuntimeError("a policy of the user's")

    made = pipeline(memory(), committed=fail)
    jobs = [good(step) for step in (1, 2)]
    for each in jobs:
        made.submit(each)
    made.drain(30)
    assert [each.save.result(0).step for each in jobs] == [1, 2]
    assert (made.durable, made.failed) == (2, 0)
    assert "the commit of step 2 failed" in caplog.text


def test_a_failed_save_writes_no_more_than_it_has_begun() -> None:
    tier = CountingTier(FaultyTier(memory(), Fault("write", ds.StorageError("no"))))
    ckpt = ds.Checkpointer(tier, arena_nbytes=8 * MIB)
    save = ckpt.save_async({"a": array(200)})
    with pytest.raises(ds.SaveError):
        save.result(30)
    assert tier.calls["write"] < 40, "of a hundred pieces"
    assert tier.calls["abort"] == 1 and tier.calls["seal"] == 0
    ckpt.close()


# Order.


def test_half_written_steps_are_swept_before_the_first_save() -> None:
    """A disk that dead savers have filled must not stay full because no save succeeds."""
    seen: list[str] = []

    class Watched(WrapperTier):
        def around(self, method: str, call: Callable[[], T]) -> T:
            seen.append(method)
            return call()

    with ds.Checkpointer(Watched(memory())) as ckpt:
        ckpt.save(1, step=1)
    assert seen.index("sweep") < seen.index("begin")


def test_a_save_is_done_before_old_steps_are_removed() -> None:
    """Slow deletions hold `wait`, never the handle."""
    tier = GatedTier(memory(), "delete")
    with ds.Checkpointer(tier, keep_last=1) as ckpt, tier:
        ckpt.save(1, step=1)
        ckpt.save(2, step=2)
        assert tier.reached.wait(30)
        with pytest.raises(ds.SaveTimeoutError):
            ckpt.wait(timeout=0.01)
        tier.gate.set()
        ckpt.wait(30)
        assert ckpt.steps() == [2]


def test_slow_deletions_do_not_delay_the_next_saves() -> None:
    """Case 99: they go on beside them, so far behind and no further."""
    tier = GatedTier(memory(), "delete")
    with ds.Checkpointer(tier, keep_last=1) as ckpt, tier:
        for step in range(1, 5):
            assert ckpt.save(step, step=step).step == step
        assert tier.reached.is_set() and ckpt.steps() == [1, 2, 3, 4]
        tier.gate.set()
        ckpt.wait(30)
        assert ckpt.steps() == [4]


def test_a_pipeline_that_was_stopped_takes_nothing_more(pipeline: Any) -> None:
    made = pipeline(memory())
    made.submit(good(1))
    made.close(30)
    with pytest.raises(ds.ClosedError):
        made.submit(good(2))
    assert made.in_flight() == []


# Watching.


def test_a_save_that_stands_still_is_reported_now_and_then(pipeline: Any) -> None:
    """Case 38: at each interval, not at each look; here the minute is a fraction of a second."""
    heard = threading.Semaphore(0)
    lines: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            heard.release()

    ear = Ear(logging.WARNING)
    log = logging.getLogger("datastates")
    log.addHandler(ear)
    try:
        with GatedTier(memory(), "write") as tier:
            made = pipeline(tier, watch_s=0.05)
            made.submit(good(5))
            for _ in range(100):
                made.in_flight()
            assert heard.acquire(timeout=30) and heard.acquire(timeout=30)
            tier.gate.set()
            made.drain(30)
    finally:
        log.removeHandler(ear)
    assert all("step 5" in line and "no progress for" in line for line in lines)


# Workers.


def test_tasks_that_fail_end_the_others_and_the_first_error_is_raised() -> None:
    done: list[int] = []

    def fail() -> None:
        raise Panic("first")

    with pytest.raises(Panic, match="first"):
        run_all([fail, *(lambda i=i: done.append(i) for i in range(100))], 1, "test")
    assert done == []
    run_all([lambda i=i: done.append(i) for i in range(10)], 4, "test")
    assert sorted(done) == list(range(10))
    run_all([], 4, "test")


def test_a_call_has_a_deadline_and_keeps_its_own_errors() -> None:
    never = threading.Event()
    assert within(30, "adding", lambda: 1 + 1) == 2
    with pytest.raises(StorageTimeoutError, match=r"no answer for 0.01 s: waiting"):
        within(0.01, "waiting", never.wait)
    never.set()

    def fail() -> None:
        raise TimeoutError("the call's own")

    with pytest.raises(TimeoutError, match="the call's own"):
        within(30, "failing", fail)


@pytest.mark.parametrize("where", ["_enqueue", "stage"])
def test_an_interrupt_between_two_steps_of_the_call_costs_that_save_only(
    where: str, pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C: the next save is neither held back, nor is the end."""
    tier = memory()
    made = pipeline(tier, stall_timeout_s=5.0)
    owner = made if where == "_enqueue" else made._stager
    whole = getattr(owner, where)

    def interrupted(*args: Any) -> None:
        if where == "_enqueue":
            whole(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, where, interrupted)
    first, second = good(1), good(2)
    with pytest.raises(KeyboardInterrupt):
        made.submit(first)
    monkeypatch.undo()
    made.submit(second)
    assert second.save.result(30).step == 2
    with pytest.raises(ds.SaveError, match="interrupted"):
        first.save.result(30)
    made.drain(30)
    assert [entry.step for entry in tier.entries()] == [2]
