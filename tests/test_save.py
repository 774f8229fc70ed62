"""The life of a save as a trainer sees it: when it is captured, what it holds, how it ends."""

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import support
import torch

import datastates as ds
from datastates.errors import SaveTimeoutError
from datastates.plan import Plan
from datastates.testing import Fault, FaultyTier, GatedTier, SlowTier, WrapperTier
from datastates.tiers.memory import MemoryTier
from datastates.tiers.zarr import ZarrTier

MIB = 1 << 20
LOST = ds.StorageError("the disk is on fire")


def memory() -> MemoryTier:
    return MemoryTier(str(uuid4()))


def threads_of_ours() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("datastates-")]


# What is captured.


@pytest.mark.parametrize("share", [False, True])
def test_a_tensor_is_captured_at_the_call(share: bool) -> None:
    """Case 23: nothing is written before the optimizer step, and still the old values are saved."""
    tier = GatedTier(memory(), "begin")
    with ds.Checkpointer(tier) as ckpt, tier:
        p = torch.ones(1_000_000)
        if share:
            p.share_memory_()
        save = ckpt.save_async({"p": p}, step=1)
        p.add_(1)
        assert tier.reached.wait(30) and not save.done()
        tier.gate.set()
        save.result(30)
        assert torch.equal(ckpt.restore()["p"], torch.ones(1_000_000))


def test_every_kind_of_value_is_captured_at_the_call() -> None:
    """Case 23, for what is no tensor."""
    model = torch.nn.Linear(30, 30)
    state: dict[str, Any] = {
        "array": np.zeros(1000),
        "scalar": torch.tensor(0.0),
        "list": [1, [2]],
        "long": list(range(10_000)),
        "bytes": bytearray(100_000),
        "model": model,
    }
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    tier = GatedTier(memory(), "write", "seal")
    with ds.Checkpointer(tier) as ckpt, tier:
        ckpt.save_async(state, step=1)
        state["array"] += 1
        state["scalar"] += 1
        state["list"][1].append(3)
        state["long"].clear()
        state["bytes"][0] = 1
        torch.nn.init.zeros_(model.weight)
        state["more"] = 1
        tier.gate.set()
        ckpt.wait(30)
        found = ckpt.restore()
    assert list(found) == ["array", "scalar", "list", "long", "bytes", "model"]
    assert not found["array"].any() and found["scalar"] == 0 and not any(found["bytes"])
    assert found["list"] == [1, [2]] and found["long"] == list(range(10_000))
    support.assert_same(dict(found["model"]), expected)


def test_a_restored_state_is_the_callers_own(tmp_path: Path) -> None:
    """Case 24: training on from it changes neither the file nor a second copy."""
    with ds.Checkpointer(tmp_path) as ckpt:
        ckpt.save({"w": torch.zeros(1000), "n": np.zeros(5)})
        kept, other = ckpt.restore(), ckpt.restore()
        model = torch.nn.Linear(1000, 1)
        with torch.no_grad():
            model.weight.copy_(kept["w"])
            model.weight.add_(1)
        other["w"].add_(1)
        other["n"] += 1
        for state in (kept, ckpt.restore()):
            assert not state["w"].any() and not state["n"].any()


def test_saved_memory_is_let_go(tmp_path: Path) -> None:
    """Case 37: by the checkpointer and by the handle, which is kept here."""
    with ds.Checkpointer(tmp_path) as ckpt:
        array = np.ones(1_000_000)
        tensor = torch.from_numpy(np.ones(1_000_000))
        gone = [weakref.ref(array), weakref.ref(tensor)]
        save = ckpt.save_async({"array": array, "tensor": tensor})
        save.result(30)
        del array, tensor
        gc.collect()
        assert [ref() for ref in gone] == [None, None]


def test_a_failed_save_lets_go_of_memory_as_well() -> None:
    """Case 37: its error is kept for the caller, with no frame that holds the state."""
    tier = FaultyTier(memory(), Fault("write", LOST))
    ckpt = ds.Checkpointer(tier)
    array = np.ones(1_000_000)
    gone = weakref.ref(array)
    save = ckpt.save_async({"array": array})
    with pytest.raises(ds.SaveError):
        save.result(30)
    del array
    ckpt.wait()
    gc.collect()
    assert gone() is None
    ckpt.close()


def test_memory_tensors_of_a_restored_step_outlive_it(tmp_path: Path) -> None:
    """Case 55: saving to the step that a state came from, and deleting it, hurts nothing."""
    expected = {"w": torch.arange(300_000.0), "n": np.arange(100_000)}
    with ds.Checkpointer(tmp_path) as ckpt:
        ckpt.save(expected, step=3)
        state = ckpt.restore()
        ckpt.save(state, step=3)
        support.assert_same(state, expected)
        support.assert_same(ckpt.restore(step=3), expected)
        ckpt.delete(3)
        support.assert_same(state, expected)
        state["w"].add_(1)
        state["n"] += 1


def test_without_a_gpu_tensors_come_back_on_the_cpu(tmp_path: Path) -> None:
    """Case 66, the half that needs no GPU: no device is recorded, the target's is taken."""
    with ds.Checkpointer(tmp_path) as ckpt:
        ckpt.save({"t": torch.ones(3), "m": torch.nn.Linear(2, 2)})
        assert ckpt.restore()["t"].device.type == "cpu"
        assert ckpt.restore(device="cpu")["m"]["weight"].device.type == "cpu"
        into = {"t": torch.zeros(3), "m": torch.nn.Linear(2, 2)}
        assert ckpt.restore(into, device="meta")["t"].device.type == "cpu"
    texts = [path.read_text("utf-8") for path in tmp_path.rglob("zarr.json")]
    assert texts and not any("device" in text or "cuda" in text for text in texts)


def test_a_device_that_is_not_there_is_the_callers_error_and_no_damage(tmp_path: Path) -> None:
    """Case 66: no step is called damaged, and none is fallen back to."""
    if torch.cuda.is_available():
        pytest.skip("there is one here")
    with ds.Checkpointer(tmp_path) as ckpt:
        for step in (1, 2):
            ckpt.save({"t": torch.ones(3)}, step=step)
        with pytest.raises(ds.UsageError, match="cannot be put on cuda:0"):
            ckpt.restore(device="cuda:0")


# The handle.


def test_the_handle_tells_what_the_save_cost() -> None:
    """Case 102: the numbers are a record on the handle."""
    with ds.Checkpointer(memory()) as ckpt:
        save = ckpt.save_async({"a": torch.zeros(250_000)}, step=7)
        stats = save.result(30)
        assert stats == save.stats and save.done() and save.exception() is None
    assert (stats.step, stats.nbytes, save.step) == (7, 1_000_000, 7)
    assert stats.durable_s is not None and stats.gb_per_s is not None
    assert 0 <= stats.waited_s <= stats.stalled_s
    assert stats.gb_per_s == pytest.approx(1e-3 / stats.durable_s)
    assert (save.status.stage, save.status.written_nbytes) == ("durable", save.status.nbytes)
    assert repr(save).startswith("<Save step 7: durable, ")


def test_an_info_line_a_save_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """Case 102: bytes, time blocked and time to durable, however many tensors there are."""
    caplog.set_level(logging.INFO, "datastates")
    with ds.Checkpointer(memory(), keep_last=1) as ckpt:
        for _ in range(3):
            ckpt.save({"t": [torch.zeros(1000) for _ in range(50)]})
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(":")[0] for line in lines] == [f"saved step {i}" for i in range(3)]
    assert all(
        "0.2 MB" in line and "held the caller" in line and "durable" in line for line in lines
    )


def test_a_handle_can_be_awaited() -> None:
    async def train() -> ds.SaveStats:
        with GatedTier(memory(), "write") as tier:
            ckpt = ds.Checkpointer(tier)
            save = ckpt.save_async({"a": 1.5, "t": torch.ones(10)}, step=4)
            waiting = asyncio.ensure_future(save)
            await asyncio.to_thread(tier.reached.wait, 30)
            assert not waiting.done(), "the loop goes on meanwhile"
            tier.gate.set()
            stats = await waiting
            ckpt.close()
            return stats

    assert asyncio.run(train()).step == 4


def test_awaiting_a_failed_save_raises() -> None:
    async def train() -> None:
        ckpt = ds.Checkpointer(FaultyTier(memory(), Fault("commit", LOST)))
        with pytest.raises(ds.SaveError, match="on fire"):
            await ckpt.save_async(1)
        ckpt.close()  # it has been seen

    asyncio.run(train())


def test_giving_up_an_await_leaves_the_save_alone() -> None:
    """And the event loop can end while the storage still does not answer."""

    async def train(ckpt: ds.Checkpointer) -> ds.Save:
        save = ckpt.save_async({"t": torch.ones(10)})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(save, 0.01)
        return save

    tier = GatedTier(memory(), "write")
    with ds.Checkpointer(tier) as ckpt, tier:
        save = asyncio.run(train(ckpt))
        assert not save.done()
        tier.gate.set()
        save.result(30)


def test_waiting_has_a_deadline_and_changes_nothing() -> None:
    """Case 33: storage that never answers holds nobody; each wait says where the save stands."""
    with GatedTier(memory(), "write") as tier:
        ckpt = ds.Checkpointer(tier)
        save = ckpt.save_async({"t": torch.ones(1000)}, step=5)
        assert tier.reached.wait(30)
        for wait in (lambda: save.result(timeout=0.01), lambda: ckpt.wait(timeout=0.01)):
            with pytest.raises(SaveTimeoutError, match=r"step 5: \w+, 0 of \d+ bytes") as caught:
                wait()
            assert caught.value.step == 5
            assert isinstance(caught.value, TimeoutError)
        queued = ckpt.save_async({"t": torch.ones(1000)}, step=6)  # waits its turn
        with pytest.raises(SaveTimeoutError):
            ckpt.close(timeout=0.01)
        with pytest.raises(ds.ClosedError):
            ckpt.save_async(1)
        tier.gate.set()
        assert queued.result(30).step == 6
        assert save.exception() is None
        assert ckpt.steps() == [5, 6]


@pytest.mark.parametrize(
    ("method", "stage"), [("write", "writing"), ("seal", "sealing"), ("commit", "committing")]
)
def test_a_stuck_save_says_where_it_is(method: str, stage: str) -> None:
    """Case 38: step, stage, bytes done and age, at any time and without blocking."""
    tier = GatedTier(memory(), method)
    with ds.Checkpointer(tier, arena_nbytes=8 * MIB) as ckpt, tier:
        ckpt.save_async({"a": torch.ones(1000), "b": torch.ones(2000)}, step=3)
        assert tier.reached.wait(30)
        (status,) = ckpt.statistics().in_flight
        assert status.step == 3 and status.age_s > 0
        assert status.stage == stage or method == "write"  # the last piece may not be on its way
        assert status.written_nbytes == (0 if method == "write" else status.nbytes)
        assert "1 saves in flight" in repr(ckpt)
        tier.gate.set()
        ckpt.wait(30)
        statistics = ckpt.statistics()
        assert (statistics.in_flight, statistics.durable, statistics.failed) == ((), 1, 0)


# Many saves.


def test_saves_back_to_back_keep_their_order_and_their_values() -> None:
    """Case 28: on a store that takes 50 ms a write, each handle ends and holds its own values."""
    tier = SlowTier(memory(), latency_s={"write": 0.05})
    with ds.Checkpointer(tier) as ckpt:
        t = torch.zeros(100_000)
        saves = []
        for step in range(1, 9):
            t.fill_(step)
            saves.append(ckpt.save_async({"t": t, "step": step}, step=step))
        assert not saves[-1].done()
        for step, save in enumerate(saves, 1):
            assert save.result(30).step == step
            assert all(s.done() for s in saves[:step])
            state = ckpt.restore(step=step)
            assert state["step"] == step and (state["t"] == step).all()
        assert ckpt.steps() == list(range(1, 9))


def test_a_save_into_a_full_arena_waits_and_says_how_long() -> None:
    """Case 29: slower storage than training costs time, never memory; the time is reported."""
    tier = SlowTier(memory(), bytes_per_s=100e6)
    with ds.Checkpointer(tier, arena_nbytes=12 * MIB, keep_last=1) as ckpt:
        t, saves, most = torch.zeros(5 * MIB, dtype=torch.uint8), [], 0
        for step in range(20):
            t.fill_(step)
            saves.append(ckpt.save_async({"t": t}, step=step))
            arena = ckpt.statistics().arena
            most = max(most, arena.used_nbytes)
            assert arena.nbytes <= arena.budget_nbytes == 12 * MIB
        ckpt.wait(60)
        assert 5 * MIB < most <= 12 * MIB
        waited = sum(save.stats.waited_s for save in saves)
        assert 0.3 < waited <= sum(save.stats.stalled_s for save in saves)
        assert (ckpt.restore()["t"] == 19).all()


def test_saves_from_two_threads_at_once_are_each_whole() -> None:
    with ds.Checkpointer(memory(), arena_nbytes=8 * MIB) as ckpt:

        def train(first: int) -> list[ds.Save]:
            made = []
            for step in range(first, 20, 2):
                state = {"t": torch.full((MIB,), float(step)), "step": step}
                made.append(ckpt.save_async(state, step=step))
            return made

        with ThreadPoolExecutor(2) as pool:
            saves = [save for made in pool.map(train, (0, 1)) for save in made]
        for save in saves:
            save.result(60)
        assert ckpt.steps() == list(range(20))
        for step in range(20):
            state = ckpt.restore(step=step)
            assert state["step"] == step and (state["t"] == step).all()


def test_steps_are_numbered_where_no_number_is_given() -> None:
    """Pending saves count, and so does what another process has saved."""
    place = str(uuid4())
    tier = GatedTier(MemoryTier(place), "write")
    with ds.Checkpointer(tier) as ckpt, tier:
        saves = [ckpt.save_async({"t": torch.ones(3)}) for _ in range(2)]
        tier.gate.set()
        assert [save.result(30).step for save in saves] == [0, 1]
        with ds.Checkpointer(MemoryTier(place)) as other:
            other.save(1, step=41)
        assert ckpt.save(2).step == 42


def test_a_save_for_a_lower_step_is_made() -> None:
    """Case 97: and the newest step is still the highest one."""
    with ds.Checkpointer(memory(), keep_last=2) as ckpt:
        ckpt.save("late", step=100)
        assert ckpt.save("early", step=5).step == 5
        assert ckpt.steps() == [5, 100]
        assert ckpt.latest() == 100
        assert ckpt.restore(step=5) == "early"


def test_a_larger_state_than_the_first_one_is_no_problem() -> None:
    """The arena was sized for the small one, which is still on its way."""
    with GatedTier(memory(), "write") as tier:
        ckpt = ds.Checkpointer(tier, arena_nbytes=256 * MIB, stall_timeout_s=30)
        small = ckpt.save_async({"t": torch.ones(10)}, step=0)
        assert tier.reached.wait(30)
        opener = threading.Timer(0.1, tier.gate.set)
        opener.start()
        big = ckpt.save_async({"t": torch.ones(40 * MIB, dtype=torch.uint8)}, step=1)
        assert big.result(30).nbytes == 40 * MIB and small.done()
        opener.join()
        ckpt.close()


# Failing.


@pytest.mark.parametrize("method", ["begin", "write", "seal", "commit"])
def test_a_failed_save_costs_that_checkpoint_only(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged at once, raised by its handle, and the next save is as good as any."""
    ckpt = ds.Checkpointer(FaultyTier(memory(), Fault(method, LOST, nth=2)), arena_nbytes=8 * MIB)
    ckpt.save({"t": torch.ones(3)}, step=1)
    save = ckpt.save_async({"t": torch.ones(3)}, step=2)
    with pytest.raises(
        ds.SaveError, match=r"step 2 failed while .*: the disk is on fire"
    ) as caught:
        save.result(30)
    assert caught.value.__cause__ is LOST and caught.value.step == 2
    assert save.status.stage == "failed" and save.stats.durable_s is None
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    ckpt.save({"t": torch.ones(3)}, step=3)
    ckpt.wait()
    assert ckpt.steps() == [1, 3]
    assert ckpt.statistics().arena.used_nbytes == 0
    assert (ckpt.statistics().durable, ckpt.statistics().failed) == (2, 1)
    ckpt.close()


@pytest.mark.parametrize("end", ["wait", "close"])
def test_a_failure_that_nobody_looked_at_is_raised_at_the_end(end: str) -> None:
    ckpt = ds.Checkpointer(FaultyTier(memory(), Fault("seal", LOST)))
    ckpt.save_async(1, step=1)
    ckpt.save_async(2, step=2)
    with pytest.raises(ds.SaveError, match="step 1"):
        getattr(ckpt, end)()
    ckpt.wait()  # told once is enough
    ckpt.close()


def test_several_failures_are_raised_as_a_group() -> None:
    ckpt = ds.Checkpointer(FaultyTier(memory(), Fault("seal", LOST, again=True)))
    with pytest.raises(ds.SaveError):
        ckpt.save_async(0, step=0).result(30)  # this one has been seen
    for step in (1, 2):
        ckpt.save_async(step, step=step)
    with pytest.raises(ExceptionGroup, match="2 saves failed") as caught:
        ckpt.close()
    assert [getattr(error, "step", None) for error in caught.value.exceptions] == [1, 2]


def test_the_bodys_own_error_comes_out_of_a_with_block() -> None:
    """Case 39: the lost checkpoint is a note on it."""
    tier = FaultyTier(memory(), Fault("seal", LOST))
    with pytest.raises(ValueError, match="training broke") as caught, ds.Checkpointer(tier) as ckpt:
        ckpt.save_async(1, step=8)
        raise ValueError("training broke")
    assert any("step 8 failed" in note for note in caught.value.__notes__)


def test_a_lost_checkpoint_comes_out_of_a_good_with_block() -> None:
    tier = FaultyTier(memory(), Fault("seal", LOST))
    with pytest.raises(ds.SaveError, match="on fire"), ds.Checkpointer(tier) as ckpt:
        ckpt.save_async(1)


def test_storage_that_cannot_be_listed_costs_the_save_not_the_run() -> None:
    """Without a number the newest step has to be asked for; the handle fails, nothing raises."""
    tier = FaultyTier(memory(), Fault("newest", LOST, nth=2))
    ckpt = ds.Checkpointer(tier)
    ckpt.save(1)
    save = ckpt.save_async(2)
    assert save.done()
    with pytest.raises(ds.SaveError, match="on fire"):
        save.result()
    assert ckpt.save(3).step == 1
    assert ckpt.statistics().failed == 1
    ckpt.close()


def test_storage_that_cannot_tell_its_free_space_is_no_error() -> None:
    class Shy(WrapperTier):
        def free_nbytes(self) -> int:
            raise LOST

    with ds.Checkpointer(Shy(memory())) as ckpt:
        assert ckpt.save(1).step == 0


def test_a_state_too_large_for_memory_costs_the_save_only() -> None:
    """The tier `memory` itself has no room for it."""
    plan = Plan((), (), (), 1 << 60, 0)
    with pytest.raises(ds.StorageError, match="no memory for a step of"):
        memory().begin(1, plan)


def test_metrics_without_end_are_refused_by_the_tier(tmp_path: Path) -> None:
    """A record that no reader would take is not written."""
    with ds.Checkpointer(tmp_path) as ckpt:
        with pytest.raises(ds.SaveError, match="metrics and metadata of the step take"):
            ckpt.save(1, metrics={f"metric number {i:010d}": 1.0 for i in range(300_000)})
        assert ckpt.steps() == []


def test_an_unstorable_value_is_refused_before_anything_is_done() -> None:
    with ds.Checkpointer(memory()) as ckpt:
        with pytest.raises(ds.UnsupportedValueError, match="a/1") as caught:
            ckpt.save_async({"a": [0, object()]})
        assert caught.value.key == "a/1"
        assert ckpt.statistics().in_flight == () and ckpt.steps() == []


# The end.


def test_closing_twice_is_allowed() -> None:
    ckpt = ds.Checkpointer(memory())
    ckpt.save(1)
    for _ in range(3):
        ckpt.close()
    assert repr(ckpt).endswith(": closed>")
    with pytest.raises(ds.ClosedError):
        ckpt.save(2)


def test_closing_what_was_never_used_makes_nothing(tmp_path: Path) -> None:
    before = set(threads_of_ours())
    with ds.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.wait()
        assert ckpt.latest() is None and ckpt.steps() == []
        assert ckpt.statistics().in_flight == () and ckpt.statistics().arena.nbytes == 0
    assert not (tmp_path / "run").exists()
    assert set(threads_of_ours()) <= before


@pytest.mark.parametrize("end", ["close", "drop"])
def test_no_thread_stays_behind(end: str) -> None:
    """A dropped checkpointer finishes its saves, and then its threads go, too."""
    before = set(threads_of_ours())
    place = str(uuid4())
    tier = GatedTier(MemoryTier(place), "write")
    ckpt = ds.Checkpointer(tier)
    save = ckpt.save_async({"t": torch.ones(1000)})
    ours = set(threads_of_ours()) - before
    assert ours
    if end == "close":
        tier.gate.set()
        ckpt.close()
    else:
        del ckpt
        gc.collect()
        tier.gate.set()
    for thread in ours:
        thread.join(30)
    assert not set(threads_of_ours()) - before
    assert save.result(0).step == 0
    assert MemoryTier(place).newest() == ds.Entry(0)


def test_an_abandoned_save_does_not_finish_the_next_runs_checkpoint(tmp_path: Path) -> None:
    """Case 32: two runs in one process, one place, one step; each commits only itself."""
    with GatedTier(ZarrTier(str(tmp_path)), "seal") as slow:
        first = ds.Checkpointer(slow)
        late = first.save_async({"run": "first", "t": torch.zeros(1000)}, step=1)
        assert slow.reached.wait(30)
        del first  # its run ended by an exception
        with (
            GatedTier(ZarrTier(str(tmp_path)), "commit") as gated,
            ds.Checkpointer(gated) as second,
        ):
            save = second.save_async({"run": "second", "t": torch.ones(1000)}, step=1)
            assert gated.reached.wait(30)
            slow.gate.set()
            late.result(30)
            assert not save.done()
            assert second.restore()["run"] == "first", "what is visible is whole, and the first's"
            gated.gate.set()
            save.result(30)
            assert second.restore()["run"] == "second"


def test_the_interpreter_ends_after_its_saves(start: Callable[..., Any], tmp_path: Path) -> None:
    """Nobody waited for the last save, and it is there all the same."""
    script = start(
        """
        import sys
        import torch
        import datastates as ds
        from datastates.testing import SlowTier
        from datastates.tiers.zarr import ZarrTier
        tier = SlowTier(ZarrTier(sys.argv[1]), latency_s={"write": 0.3, "commit": 0.3})
        ckpt = ds.Checkpointer(tier)
        ckpt.save_async({"t": torch.arange(100_000)}, step=7)
        print("submitted", flush=True)
        """,
        tmp_path,
    )
    assert script.line() == "submitted"
    script.end()
    with ds.Checkpointer(tmp_path) as ckpt:
        assert ckpt.latest() == 7
        assert torch.equal(ckpt.restore()["t"], torch.arange(100_000))


def test_the_interpreter_ends_although_the_storage_does_not_answer(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    """After `close_timeout_s`, and it says what was lost."""
    script = start(
        """
        import sys
        import datastates as ds
        from datastates.testing import GatedTier
        from datastates.tiers.zarr import ZarrTier
        tier = GatedTier(ZarrTier(sys.argv[1]), "seal")
        ckpt = ds.Checkpointer(tier, close_timeout_s=0.5)
        ckpt.save_async({"a": 1}, step=7)
        tier.reached.wait(30)
        print("stuck", flush=True)
        """,
        tmp_path,
    )
    assert script.line() == "stuck"
    assert "the interpreter ends before a save has" in script.end(20)
    assert ds.Checkpointer(tmp_path).latest() is None


def test_ctrl_c_in_a_blocked_save_costs_that_save_only(start: Callable[..., Any]) -> None:
    """The caller gets its KeyboardInterrupt, and the checkpointer goes on working."""
    script = start(
        """
        import signal, threading
        import numpy as np
        import datastates as ds
        from datastates.testing import GatedTier
        from datastates.tiers.memory import MemoryTier
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start us without
        tier = GatedTier(MemoryTier("x"), "write")
        ckpt = ds.Checkpointer(tier, arena_nbytes=8 << 20)
        def interrupt():
            tier.reached.wait(30)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        threading.Thread(target=interrupt).start()
        try:
            ckpt.save_async({"a": np.ones(40 << 20, np.uint8)}, step=1)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        tier.gate.set()
        ckpt.save({"a": np.ones(40 << 20, np.uint8)}, step=2)
        try:
            ckpt.close()
        except ds.SaveError as error:
            print(error, flush=True)
        print(ckpt.steps(), ckpt.statistics().arena.used_nbytes, flush=True)
        """
    )
    assert script.line() == "interrupted"
    assert script.line() == "the save of step 1 failed while copying: the call was interrupted"
    assert script.line() == "[2] 0"
    script.end()


def test_a_last_save_at_the_end_of_the_interpreter_is_made(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    """By a function registered with atexit, where no thread pool can be started any more."""
    script = start(
        """
        import atexit, sys
        import numpy as np
        import datastates as ds
        ckpt = ds.Checkpointer(sys.argv[1])
        atexit.register(lambda: ckpt.save({"a": np.ones(3_000_000)}, step=5))
        print("ending", flush=True)
        """,
        tmp_path,
    )
    assert script.line() == "ending"
    script.end()
    with ds.Checkpointer(tmp_path) as ckpt:
        assert ckpt.latest() == 5 and ckpt.verify().ok


# Memory.

CONSTANT = """
import os, sys
import torch
import datastates as ds

def measure():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    rss = int(status["VmRSS"].split()[0]) // 1024
    things = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    shared = sorted(os.listdir("/dev/shm")), sorted(os.listdir(sys.argv[2]))
    return rss, (*things, *shared)

os.environ["TMPDIR"] = sys.argv[2]
with ds.Checkpointer(sys.argv[1], keep_last=1) as ckpt:
    state = {"a": torch.zeros(1 << 19), "b": [torch.zeros(1 << 17) for _ in range(4)]}
    for step in range(200):
        state["a"].add_(1)
        ckpt.save(state, step=step)
        ckpt.wait()
        if step == 20:
            rss, things = measure()
    later, same = measure()
    print(later - rss, things == same, things, same, flush=True)
"""


@pytest.mark.slow
def test_memory_threads_and_files_stay_constant(start: Callable[..., Any], tmp_path: Path) -> None:
    """Case 25: 200 saves of 4 MB; one staging buffer lost at each would be far over the limit."""
    (tmp_path / "tmp").mkdir()
    script = start(CONSTANT, tmp_path / "run", tmp_path / "tmp")
    grown, same, *_ = said = script.line(110).split(" ", 2)
    assert int(grown) < 64, said
    assert same == "True", said
    script.end()


BOUNDED = """
import sys
import torch
import datastates as ds
from datastates.tiers.zarr import ZarrTier

def peak():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmHWM"].split()[0]) // 1024

MIB = 1 << 20
count, arena, size = map(int, sys.argv[2:])
state = {i: torch.ones(size * MIB, dtype=torch.uint8) for i in range(count)}
with ds.Checkpointer("memory://warm") as warm:
    warm.save({"t": torch.ones(10)})
before = peak()
with ds.Checkpointer(ZarrTier(sys.argv[1], fsync=False), arena_nbytes=arena * MIB) as ckpt:
    for step in range(2):
        ckpt.save_async(state, step=step)
    ckpt.wait()
    print(peak() - before, flush=True)
    print(ckpt.verify(1).ok, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "arena", "size", "most"), [(8, 128, 64, 200), (1, 32, 256, 100)], ids=["many", "one"]
)
def test_staging_takes_no_more_than_its_limit(
    start: Callable[..., Any], tmp_path: Path, count: int, arena: int, size: int, most: int
) -> None:
    """Case 27: 512 MB through 128 MB, twice; and one tensor of 256 MB through 32 MB."""
    script = start(BOUNDED, tmp_path, count, arena, size)
    assert int(script.line(100)) < most
    assert script.line(60) == "True"
    script.end()


def test_an_arena_that_is_too_small_is_refused_at_once() -> None:
    """Case 27: when the checkpointer is made, not at the first save."""
    with pytest.raises(ds.UsageError, match=r"arena_nbytes must be .* not 1000"):
        ds.Checkpointer("nowhere", arena_nbytes=1000)
