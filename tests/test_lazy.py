"""What is copied after the call: where the caller vouches, how it is bounded, what it costs."""

import gc
import threading
import weakref
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import support
import torch
from torch import nn

import datastates as ds
from datastates.testing import SlowTier
from datastates.tiers.memory import MemoryTier

MIB = 1 << 20


def filled(mib: int, value: float = 1.0) -> torch.Tensor:
    return torch.full((mib * MIB // 4,), value)


def two_parts() -> dict[str, Any]:
    """A part that fills the arena of `held`, and one that has to wait."""
    return {"filler": filled(12), "model": {"late": torch.randn(MIB)}}


# The caller vouches.


@pytest.mark.parametrize("part", ["model", "model/late", ("model", "late")])
def test_a_part_that_the_caller_vouches_for_is_copied_until_the_fence(held: Any, part: Any) -> None:
    """Case 23."""
    state = two_parts()
    late = state["model"]["late"]
    expected = late.clone()
    save = held.ckpt.save_async(state, step=1, lazy=["filler", part])
    assert save.stats.lazy_nbytes > 16 * MIB
    held.go_on()
    held.ckpt.fence()
    late.add_(1)
    state["filler"].zero_()
    save.result(30)
    found = held.ckpt.restore()
    assert torch.equal(found["model"]["late"], expected) and (found["filler"] == 1).all()


def test_what_nobody_vouches_for_is_copied_in_the_call(held: Any) -> None:
    """Case 23: small things too, whoever vouches: that costs less than to watch them."""
    held.go_on()
    state = two_parts() | {"model": {"late": filled(4), "bias": torch.ones(100), "n": [1]}}
    save = held.ckpt.save_async(state, lazy=["model"], step=1)
    assert 4 * MIB < save.stats.lazy_nbytes < 5 * MIB
    state["filler"].zero_()
    state["model"]["bias"].zero_()
    state["model"]["n"].append(2)
    held.ckpt.fence()
    found = held.ckpt.restore(step=1) if save.result(30) else None
    assert found["model"]["n"] == [1] and found["model"]["bias"].all() and found["filler"].all()


@pytest.mark.parametrize("wrong", ["model", [3], [()], 5])
def test_parts_that_are_none_are_refused(held: Any, wrong: Any) -> None:
    held.go_on()
    with pytest.raises(ds.UsageError, match="lazy"):
        held.ckpt.save_async({"model": 1}, lazy=wrong)


def test_a_fence_waits_for_copies_and_not_for_storage(hold: Callable[..., Any]) -> None:
    """The arena takes all of it, so the fence opens while nothing has been written."""
    held = hold(arena_nbytes=32 * MIB)
    state = two_parts()
    expected = state["model"]["late"].clone()
    save = held.ckpt.save_async(state, step=1, lazy=["filler", "model"])
    held.ckpt.fence()
    state["model"]["late"].zero_()
    assert not save.done() and save.stats.durable_s is None
    held.go_on()
    save.result(30)
    assert torch.equal(held.ckpt.restore()["model"]["late"], expected)


def test_a_fence_waits_for_storage_where_the_arena_is_too_small(held: Any) -> None:
    state = two_parts()
    save = held.ckpt.save_async(state, step=1, lazy=["filler", "model"])
    fencing = threading.Thread(target=held.ckpt.fence)
    fencing.start()
    fencing.join(0.1)
    assert fencing.is_alive()
    held.go_on()
    fencing.join(30)
    assert not fencing.is_alive()
    assert save.result(30).fenced_s > 0.09, "and says so"


def test_a_fence_with_nothing_to_wait_for_returns(held: Any) -> None:
    held.ckpt.fence()  # before the first save
    held.go_on()
    held.ckpt.save(two_parts())
    held.ckpt.fence()


def test_storage_that_never_drains_costs_the_save_and_not_the_run(hold: Callable[..., Any]) -> None:
    """Case 33: the fence opens in the end; what changes after it is in no checkpoint."""
    held = hold(stall_timeout_s=0.2)
    state = two_parts()
    save = held.ckpt.save_async(state, step=1, lazy=["filler", "model"])
    held.ckpt.fence()
    state["model"]["late"].zero_()
    held.go_on()
    with pytest.raises(ds.SaveTimeoutError):
        save.result(30)
    held.ckpt.wait(30)
    assert held.ckpt.steps() == []
    held.ckpt.save(state, step=2, lazy=["filler", "model"])


def test_a_single_changed_element_is_caught_by_the_full_check(hold: Callable[..., Any]) -> None:
    """Case 23: one that lies between the samples, and that no counter counts."""
    held = hold(lazy_check="full")
    state = two_parts()
    save = held.ckpt.save_async(state, step=1, lazy=["filler", "model"])
    state["model"]["late"].numpy()[333_333] += 1
    held.go_on()
    with pytest.raises(ds.SaveError, match="model/late changed"):
        save.result(30)
    held.ckpt.save(state, step=2, lazy=["filler", "model"])
    support.assert_same(state, held.ckpt.restore())


def test_a_restore_into_what_is_still_being_copied_waits_for_the_fence(held: Any) -> None:
    held.go_on()
    first = two_parts()
    held.ckpt.save(first, step=1)
    held.ckpt.wait()
    expected = first["model"]["late"].clone()
    held.stop()
    first["model"]["late"].fill_(7)
    save = held.ckpt.save_async(first, step=2, lazy=["filler", "model"])
    restoring = threading.Thread(target=lambda: held.ckpt.restore(into=first, step=1))
    restoring.start()
    restoring.join(0.1)
    assert restoring.is_alive() and (first["model"]["late"] == 7).all()
    held.go_on()
    restoring.join(30)
    save.result(30)
    assert torch.equal(first["model"]["late"], expected)
    assert (held.ckpt.restore(step=2)["model"]["late"] == 7).all()


def test_tied_and_overlapping_parts_are_stored_once_and_exact(held: Any) -> None:
    """Cases 1 and 2: one name is vouched for, the other is not; they are one memory."""
    whole = torch.randn(MIB)
    state = {"filler": filled(12), "model": {"w": whole}, "tied": whole, "part": whole[5:500_000]}
    save = held.ckpt.save_async(state, step=1, lazy=["filler", "model"])
    held.go_on()
    held.ckpt.fence()
    expected = whole.clone()
    whole.zero_()
    assert save.result(30).nbytes == 16 * MIB
    found = held.ckpt.restore()
    assert torch.equal(found["tied"], expected) and torch.equal(found["part"], expected[5:500_000])


# Memory that is freed, and what is let go.


def test_saved_memory_is_let_go_after_a_lazy_save(held: Any) -> None:
    """Case 37: by the guard, the pipeline, the plan and the handle."""
    memory = np.ones(MIB, np.float32)  # that of the parameter: alive as long as its storage
    parameter = nn.Parameter(torch.from_numpy(memory))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    parameter.sum().backward()
    optimizer.step()
    held.ckpt.guard(optimizer)
    held.go_on()
    gone = [weakref.ref(each) for each in (memory, parameter, optimizer)]
    save = held.ckpt.save_async({"p": parameter, "optimizer": optimizer})
    assert save.stats.lazy_nbytes > 8 * MIB
    save.result(30)
    del memory, parameter, optimizer
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3


def test_what_was_copied_in_the_call_is_let_go_in_the_call(held: Any) -> None:
    """Cases 31 and 37: by the caller's thread. To free a tensor gives the interpreter's lock away;
    a thread of ours would wait for it as often as there are tensors, and the next save for that.
    """
    gone: list[threading.Thread] = []

    class Module:
        def state_dict(self) -> dict[str, Any]:
            made = np.ones(1000)
            weakref.finalize(made, lambda: gone.append(threading.current_thread()))
            return {"made": made}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError("nothing is restored here")

    save = held.ckpt.save_async(two_parts() | {"module": Module()}, lazy=["filler", "model"])
    assert gone == [threading.current_thread()]
    assert save.stats.staged_s is None, "and the rest is still to be copied"
    held.go_on()
    save.result(30)


def test_a_failed_lazy_save_lets_go_as_well(held: Any) -> None:
    """Case 37."""
    state = two_parts()
    save = held.ckpt.save_async(state, lazy=["filler", "model"])
    state["model"]["late"].zero_()
    held.go_on()
    assert isinstance(held.ended(save).exception(), ds.SaveError)
    gone = [weakref.ref(state["filler"]), weakref.ref(state["model"]["late"])]
    state.clear()
    held.ckpt.wait(30)
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


CONSTANT = """
import os, sys
import torch
import datastates as ds
from datastates.tiers.zarr import ZarrTier

def measure():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    things = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    return int(status["VmRSS"].split()[0]) // 1024, things

net = torch.nn.Linear(1024, 1024)
optimizer = torch.optim.AdamW(net.parameters())
tier = ZarrTier(sys.argv[1], fsync=False)
with ds.Checkpointer(tier, keep_last=1, arena_nbytes=64 << 20) as ckpt:
    ckpt.guard(optimizer)
    for step in range(100):
        optimizer.zero_grad()
        net(torch.randn(2, 1024)).square().mean().backward()
        optimizer.step()
        save = ckpt.save_async({"net": net, "optimizer": optimizer}, step=step)
        if step in (20, 99):
            save.result()
            ckpt.wait()
            rss, things = measure()
            print(rss, *things, save.stats.lazy_nbytes, flush=True)
"""


def test_memory_stays_constant_over_many_lazy_saves(start: Callable[..., Any], ram: Any) -> None:
    """Case 25: 100 saves of 12 MB under guard; one buffer lost at each would be a gigabyte."""
    script = start(CONSTANT, ram / "run")
    before, after = ([int(word) for word in script.line(60).split()] for _ in range(2))
    script.end()
    assert after[0] - before[0] < 64
    assert after[1] == before[1] and after[3] > 12 * MIB
    assert after[2] <= before[2] + 8, "threads that are about to end are none of a leak"


# The arena in its three sizes.


SIZES = {"two states": (48, 2), "one": (24, 1), "less than a tensor": (8, 0)}


@pytest.mark.parametrize(("mib", "free"), SIZES.values(), ids=SIZES.keys())
def test_every_size_of_the_arena_is_exact_and_says_where_time_went(
    hold: Callable[..., Any], mib: int, free: int
) -> None:
    """Case 27: a state of 20 MiB, most of it one tensor; `free` steps pass before a byte drains."""
    held = hold(arena_nbytes=mib * MIB)
    parameters = [nn.Parameter(filled(16)), nn.Parameter(filled(4))]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    for p in parameters:
        p.grad = torch.ones_like(p)
    held.ckpt.guard(optimizer)
    saves: list[ds.Save] = []
    stepped = threading.Semaphore(0)

    def train() -> None:
        for step in range(4):
            saves.append(held.ckpt.save_async({"p": parameters}, step=step))
            optimizer.step()
            stepped.release()

    training = threading.Thread(target=train)
    training.start()
    assert all(stepped.acquire(timeout=30) for _ in range(free))
    assert held.tier.reached.wait(30)
    assert not stepped.acquire(timeout=0.2), "the next one has to wait for storage"
    arena = held.ckpt.statistics().arena
    assert 0 < arena.used_nbytes <= arena.nbytes <= arena.budget_nbytes == mib * MIB
    held.go_on()
    training.join(30)
    for step, save in enumerate(saves):
        s = save.result(30)
        times = [0.0, s.planned_s, s.staged_s, s.drained_s, s.durable_s]
        assert all(a <= b for a, b in pairwise(times)), times
        assert s.lazy_nbytes > 20 * MIB and s.stalled_s > 0
        assert all((p == 1 - step).all() for p in held.ckpt.restore(step=step)["p"])
    assert saves[free].stats.waited_s > 0.01 and saves[free].stats.fenced_s > 0.01


# Back-pressure.


def test_a_skipped_save_is_reported_and_costs_nothing(hold: Callable[..., Any]) -> None:
    """Case 28: the first is being stored, so the arena has no room for the second."""
    held = hold(busy="skip")
    state = {"t": filled(6)}
    first = held.ckpt.save_async(state, step=1)
    assert held.tier.reached.wait(30)
    state["t"].fill_(2)
    skipped = [held.ckpt.save_async(state, step=step) for step in (2, 3)]
    assert all(save.done() for save in skipped)
    for save in skipped:
        with pytest.raises(ds.SaveSkippedError, match=r"still being stored") as caught:
            save.result()
        assert caught.value.step == save.step
    held.go_on()
    first.result(30)
    held.ckpt.wait(30)
    state["t"].fill_(4)
    held.ckpt.save(state, step=4)
    assert held.ckpt.steps() == [1, 4]
    assert (held.ckpt.restore(step=1)["t"] == 1).all()
    statistics = held.ckpt.statistics()
    assert (statistics.durable, statistics.skipped, statistics.failed) == (2, 2, 0)
    assert statistics.arena.used_nbytes == 0


def test_nobody_who_asked_for_skips_is_told_of_them_as_errors(hold: Callable[..., Any]) -> None:
    held = hold(busy="skip")
    held.ckpt.save_async({"t": filled(6)}, step=1)
    assert held.tier.reached.wait(30)
    for step in range(2, 5):
        held.ckpt.save_async({"t": filled(6)}, step=step)
    held.go_on()
    held.ckpt.wait(30)
    held.ckpt.close()


def test_a_save_is_superseded_before_it_is_begun_to_be_stored(hold: Callable[..., Any]) -> None:
    """Case 28: one is being stored, one waits; each newer one takes the place of that."""
    held = hold(busy="supersede", arena_nbytes=16 * MIB)
    state = {"t": filled(6)}
    saves = []
    for step in range(1, 6):
        state["t"].fill_(step)
        saves.append(held.ckpt.save_async(state, step=step))
        assert held.tier.reached.wait(30)
        assert held.ckpt.statistics().arena.used_nbytes <= 16 * MIB
    assert [save.done() for save in saves] == [False, True, True, True, False]
    held.go_on()
    held.ckpt.wait(30)
    for save in saves[1:4]:
        with pytest.raises(ds.SaveSkippedError, match=f"superseded by .* step {save.step + 1}"):
            save.result()
    assert held.ckpt.steps() == [1, 5]
    for step in (1, 5):
        assert (held.ckpt.restore(step=step)["t"] == step).all()
    statistics = held.ckpt.statistics()
    assert (statistics.durable, statistics.skipped, statistics.failed) == (2, 3, 0)


def test_waiting_is_the_default_and_loses_no_save() -> None:
    """Case 29: on a slow store, with no more memory than it may have."""
    tier = SlowTier(MemoryTier(str(uuid4())), bytes_per_s=200e6)
    parameter = nn.Parameter(filled(6, 0.0))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad = torch.ones_like(parameter)
    with ds.Checkpointer(tier, arena_nbytes=8 * MIB) as ckpt:
        ckpt.guard(optimizer)
        saves = []
        for step in range(8):
            saves.append(ckpt.save_async({"p": parameter}, step=step))
            optimizer.step()
            assert ckpt.statistics().arena.nbytes <= 8 * MIB
        held_s = sum(save.result(30).stalled_s + save.stats.fenced_s for save in saves)
        assert held_s > 0.1, "the store is slower than this loop, and its price is told"
        assert [ckpt.restore(step=n)["p"][0].item() for n in range(8)] == [-n for n in range(8)]


@pytest.mark.parametrize("busy", ["skip", "supersede"])
def test_under_guard_the_policies_lose_steps_and_never_bytes(busy: str) -> None:
    """Case 28: what is published is exact as of its call, however often saves are given up."""
    tier = SlowTier(MemoryTier(str(uuid4())), bytes_per_s=400e6)
    parameters = [nn.Parameter(filled(4, 0.0)) for _ in range(2)]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    for p in parameters:
        p.grad = torch.ones_like(p)
    with ds.Checkpointer(tier, arena_nbytes=20 * MIB, busy=busy) as ckpt:
        ckpt.guard(optimizer)
        saves = []
        for step in range(40):
            saves.append(ckpt.save_async({"p": parameters}, step=step))
            optimizer.step()
        ckpt.wait(30)
        kept = [save.step for save in saves if save.exception() is None]
        assert ckpt.steps() == kept and 0 in kept and len(kept) < 40
        if busy == "supersede":
            assert kept[-1] == 39, "the newest is never the one that is given up"
        for step in kept:
            assert all((p == -step).all() for p in ckpt.restore(step=step)["p"])
        assert ckpt.statistics().arena.used_nbytes == 0


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ds.UsageError, match="busy must be one of wait, skip, supersede"):
        ds.Checkpointer("nowhere", busy="later")


# A busy trainer.


def waited_for_a_core() -> float:
    """Return the seconds for which this thread could have run, and others had the cores."""
    with open("/proc/thread-self/schedstat", encoding="ascii") as file:
        return int(file.read().split()[1]) / 1e9


def iterations(until: Callable[[], bool]) -> float:
    """Count in Python until then; return the rate, without what other processes take of it."""
    start, n = perf_counter() - waited_for_a_core(), 0
    while not until():
        for _ in range(2000):
            n += 1
    return n / (perf_counter() - waited_for_a_core() - start)


def test_a_busy_python_thread_keeps_its_rate_during_a_save(ram: Path) -> None:
    """Case 31: 5,000 small tensors, in the half second from the return of the call."""
    state = [torch.ones(512) for _ in range(5000)]
    with ds.Checkpointer(ram / "run") as ckpt:
        ckpt.save(state)
        ratios = []
        for _ in range(7):
            save = ckpt.save_async(state)
            start = perf_counter()
            during = iterations(lambda a=start, s=save: perf_counter() - a > 0.5 and s.done())
            took, again = perf_counter() - start, perf_counter()
            ratios.append(during / iterations(lambda a=again, t=took: perf_counter() - a > t))
    assert median(ratios) >= 0.7, ratios
