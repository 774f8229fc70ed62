"""Optimizers under guard: their tensors are copied late, and are still those of the call."""

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
import support
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import datastates as ds
from datastates.guard import Guard
from datastates.testing import SlowTier
from datastates.tiers.memory import MemoryTier

MIB = 1 << 20
WIDE = 1024  # a layer of this width is 4 MiB


@pytest.fixture
def slow_ckpt() -> Iterator[ds.Checkpointer]:
    """One whose arena holds a part of the states below, on a store that takes its time.

    Without a fence the end of a state would be copied long after the next step has changed it.
    """
    tier = SlowTier(MemoryTier(str(uuid4())), latency_s={"write": 0.003})
    with ds.Checkpointer(tier, arena_nbytes=8 * MIB) as made:
        yield made


def loss_of(net: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = net(torch.randn(4, WIDE)).square().mean()
    return loss


class Recorder:
    """Saves a state again and again, remembers what it was, and proves what was stored."""

    def __init__(self, ckpt: ds.Checkpointer, **state: Any) -> None:
        self.ckpt, self.state = ckpt, state
        self.saves: list[ds.Save] = []
        self._expected: list[dict[str, Any]] = []

    def save(self) -> ds.Save:
        self._expected.append(copy.deepcopy({k: v.state_dict() for k, v in self.state.items()}))
        self.saves.append(self.ckpt.save_async(self.state, step=len(self.saves)))
        return self.saves[-1]

    def check(self) -> None:
        """Each step is as of its call, and was not copied in it."""
        for step, (save, expected) in enumerate(zip(self.saves, self._expected, strict=True)):
            stats = save.result(60)
            support.assert_same(expected, self.ckpt.restore(step=step))
            assert stats.lazy_nbytes > 4 * MIB, "nothing was proven: it was all copied at once"


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_every_step_of_a_guarded_loop_is_as_of_its_call(
    slow_ckpt: ds.Checkpointer, make: Callable[[Any], torch.optim.Optimizer]
) -> None:
    """Case 23."""
    net = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE))
    optimizer = make(net.parameters())
    slow_ckpt.guard(optimizer)
    recorder = Recorder(slow_ckpt, net=net, optimizer=optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(net).backward()
        optimizer.step()
        recorder.save()
    loss_of(net).backward()
    optimizer.step()  # straight into the last save
    recorder.check()


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.AdamW])
def test_closures_change_nothing_before_the_fence(
    slow_ckpt: ds.Checkpointer, kind: type[torch.optim.Optimizer]
) -> None:
    """Case 23: an optimizer that asks for the loss again and again within one step."""
    net = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE))
    optimizer = kind(net.parameters(), lr=0.01)
    slow_ckpt.guard(optimizer)
    recorder = Recorder(slow_ckpt, net=net, optimizer=optimizer)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(net)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
        recorder.save()
    optimizer.step(closure)
    recorder.check()


def test_several_optimizers_each_fence(slow_ckpt: ds.Checkpointer) -> None:
    """Case 23: the one that steps last changes its half as late as the first one does."""
    net = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE))
    halves = [torch.optim.AdamW(half.parameters(), lr=0.1) for half in net]
    slow_ckpt.guard(*halves)
    recorder = Recorder(slow_ckpt, net=net, first=halves[0], second=halves[1])
    for _ in range(3):
        recorder.save()
        loss_of(net).backward()
        halves[1].step()
        recorder.save()
        halves[0].step()
    recorder.check()


def test_a_step_that_the_scaler_skips_does_no_harm(slow_ckpt: ds.Checkpointer) -> None:
    """Case 23: no step, no fence, nothing changed; and the next save is as good."""
    net = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    slow_ckpt.guard(optimizer)
    recorder = Recorder(slow_ckpt, net=net, optimizer=optimizer, scaler=scaler)
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(net) * (torch.inf if step % 2 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        recorder.save()
    assert scaler.get_scale() == 64.0, "two steps were skipped"
    recorder.check()


def test_gradients_may_accumulate_over_a_save(slow_ckpt: ds.Checkpointer) -> None:
    """Case 23: a save between two backwards, and the update some backwards later."""
    net = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    slow_ckpt.guard(optimizer)
    recorder = Recorder(slow_ckpt, net=net, optimizer=optimizer)
    for micro in range(8):
        loss_of(net).backward()
        if micro % 4 == 1:
            recorder.save()
        if micro % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    recorder.check()


def test_averaged_copies_are_not_the_optimizers(slow_ckpt: ds.Checkpointer) -> None:
    """Case 23: they change outside of every step, so they are copied in the call."""
    net = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE))
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    swa = AveragedModel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    slow_ckpt.guard(optimizer)
    recorder = Recorder(slow_ckpt, net=net, ema=ema, swa=swa)
    for _ in range(3):
        loss_of(net).backward()
        optimizer.step()
        recorder.save()
        ema.update_parameters(net)
        swa.update_parameters(net)
    recorder.check()
    assert all(save.stats.lazy_nbytes < 12 * MIB for save in recorder.saves)


def test_buffers_that_the_forward_changes_are_as_of_the_call(slow_ckpt: ds.Checkpointer) -> None:
    """Case 23: the kernels of batch normalization change them without counting it."""
    channels = 40_000  # large enough to be lazy, if they were the optimizer's
    net = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE))
    norm = nn.BatchNorm1d(channels)
    optimizer = torch.optim.SGD([*net.parameters(), *norm.parameters()], lr=0.1)
    slow_ckpt.guard(optimizer)
    recorder = Recorder(slow_ckpt, net=net, norm=norm)
    for _ in range(3):
        recorder.save()
        (norm(torch.randn(4, channels)).square().mean() + loss_of(net)).backward()
        optimizer.step()
    recorder.check()


def test_frozen_and_tied_parameters_are_exact(slow_ckpt: ds.Checkpointer) -> None:
    """Cases 1 and 17: one that the optimizer knows, one that it does not, and one of two names."""
    net = nn.Sequential(*(nn.Linear(WIDE, WIDE, bias=False) for _ in range(4)))
    net[0].weight.requires_grad_(False)
    net[1].weight.requires_grad_(False)
    net[3].weight = net[2].weight
    trained = [p for p in net.parameters() if p is not net[1].weight]
    optimizer = torch.optim.AdamW(trained, lr=0.1)
    slow_ckpt.guard(optimizer)
    recorder = Recorder(slow_ckpt, net=net, optimizer=optimizer)
    for _ in range(2):
        loss_of(net).backward()
        optimizer.step()
        recorder.save()
    net[1].weight.zero_()
    recorder.check()
    restored = slow_ckpt.restore()["net"]
    assert restored["2.weight"].data_ptr() == restored["3.weight"].data_ptr()


def test_a_compiled_module_is_guarded_as_it_is(slow_ckpt: ds.Checkpointer) -> None:
    """Case 62: with the prefix that the compiler gives its names; the tensors are the same."""
    net = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE))
    compiled = torch.compile(net, backend="eager")
    optimizer = torch.optim.AdamW(compiled.parameters(), lr=0.1)
    slow_ckpt.guard(optimizer)
    recorder = Recorder(slow_ckpt, net=compiled, optimizer=optimizer)
    for _ in range(2):
        loss_of(compiled).backward()
        optimizer.step()
        recorder.save()
    loss_of(compiled).backward()
    optimizer.step()
    recorder.check()
    assert "_orig_mod.0.weight" in slow_ckpt.restore()["net"]


# What is caught.


class Pair:
    """A tensor that fills the arena of `held`, and one that is copied once that has drained."""

    def __init__(self, **options: Any) -> None:
        self.filler = nn.Parameter(torch.zeros(3 * MIB))
        self.late = nn.Parameter(torch.randn(MIB))
        self.optimizer = torch.optim.SGD([self.filler, self.late], lr=0.1, **options)

    @property
    def state(self) -> dict[str, Any]:
        return {"filler": self.filler, "late": self.late}


def by_operation(p: torch.Tensor) -> None:
    with torch.no_grad():
        p.mul_(2)


def by_data(p: torch.Tensor) -> None:
    p.data.add_(1)


def by_numpy(p: torch.Tensor) -> None:
    p.detach().numpy()[:] = 3


def by_fused_kernel(p: torch.Tensor) -> None:
    p.grad = torch.ones_like(p)
    torch.optim.AdamW([p], lr=0.1, fused=True).step()


def by_resizing(p: torch.Tensor) -> None:
    p.untyped_storage().resize_(0)


CHANGES = [by_operation, by_data, by_numpy, by_fused_kernel]


@pytest.mark.parametrize("change", [*CHANGES, by_resizing])
def test_a_change_outside_of_a_guarded_step_fails_that_save_by_name(
    held: Any, change: Callable[[torch.Tensor], None]
) -> None:
    """Cases 9 and 23: whatever counts it or does not; a freed storage is no crash."""
    pair = Pair()
    held.ckpt.guard(pair.optimizer)
    save = held.ckpt.save_async(pair.state, step=1)
    change(pair.late)
    held.go_on()
    with pytest.raises(ds.SaveError, match=r"step 1 failed while .*late changed after") as caught:
        save.result(30)
    assert isinstance(caught.value.__cause__, ds.ChangedError)
    assert caught.value.__cause__.key == "late"
    assert held.ckpt.latest() is None


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_caught_changing_is_copied_at_once_from_then_on(
    held: Any, change: Callable[[torch.Tensor], None]
) -> None:
    """Case 23: so a habit of the trainer costs one checkpoint, not all of them."""
    pair = Pair()
    held.ckpt.guard(pair.optimizer)
    bad = held.ckpt.save_async(pair.state)
    change(pair.late)
    held.go_on()
    assert isinstance(held.ended(bad).exception(), ds.SaveError)
    for step in (2, 3):
        held.stop()
        expected = pair.late.detach().clone()
        save = held.ckpt.save_async(pair.state, step=step)
        change(pair.late)
        held.go_on()
        assert save.result(30).lazy_nbytes > 12 * MIB, "the other one is still copied later"
        assert torch.equal(held.ckpt.restore(step=step)["late"], expected)


def test_training_goes_on_after_a_lost_save(held: Any) -> None:
    pair = Pair(momentum=0.9)
    held.ckpt.guard(pair.optimizer)
    bad = held.ckpt.save_async(pair.state)
    pair.late.data.add_(1)
    held.go_on()
    for step in range(1, 4):
        (pair.filler.sum() + pair.late.sum()).backward()
        pair.optimizer.step()
        expected = pair.late.detach().clone()
        save = held.ckpt.save_async(pair.state | {"optimizer": pair.optimizer}, step=step)
        pair.optimizer.step()
        save.result(30)
        assert torch.equal(held.ckpt.restore()["late"], expected)
    assert isinstance(bad.exception(), ds.SaveError)
    assert (held.ckpt.statistics().durable, held.ckpt.statistics().failed) == (3, 1)


def test_an_optimizer_without_guard_that_shares_a_parameter_is_caught(held: Any) -> None:
    pair = Pair()
    other = torch.optim.SGD([pair.late], lr=0.1)
    held.ckpt.guard(pair.optimizer)
    save = held.ckpt.save_async(pair.state)
    pair.late.sum().backward()
    other.step()
    held.go_on()
    assert "late changed" in str(held.ended(save).exception())


# Who is guarded.


def test_inference_tensors_are_copied_at_once(held: Any) -> None:
    """They have no counter of changes."""
    pair = Pair()
    with torch.inference_mode():
        frozen = torch.ones(MIB // 2)
    pair.optimizer.state[pair.late]["frozen"] = frozen
    held.ckpt.guard(pair.optimizer)
    save = held.ckpt.save_async(pair.state | {"frozen": frozen}, step=1)
    with torch.inference_mode():
        frozen.zero_()
    held.go_on()
    save.result(30)
    assert (held.ckpt.restore()["frozen"] == 1).all()


def test_a_parameter_that_was_added_is_guarded_too(held: Any) -> None:
    pair = Pair()
    held.ckpt.guard(pair.optimizer)
    more = nn.Parameter(torch.ones(MIB))
    pair.optimizer.add_param_group({"params": [more], "lr": 0.5})
    save = held.ckpt.save_async(pair.state | {"more": more}, step=1)
    assert save.stats.lazy_nbytes > 20 * MIB
    held.go_on()
    more.sum().backward()
    pair.optimizer.step()
    save.result(30)
    assert (held.ckpt.restore()["more"] == 1).all() and (more == 0.5).all()


def test_a_parameter_that_was_swapped_is_looked_up_anew(held: Any) -> None:
    """What the optimizer no longer updates is copied at once; what it updates now is not."""
    pair = Pair()
    held.ckpt.guard(pair.optimizer)
    old, new = pair.late, nn.Parameter(torch.ones(MIB))
    pair.optimizer.param_groups[0]["params"][1] = new
    held.go_on()
    save = held.ckpt.save_async({"old": old, "new": new, "filler": pair.filler})
    assert 16 * MIB < save.stats.lazy_nbytes < 20 * MIB
    with torch.no_grad():
        expected = old.clone()
        old.zero_()
    save.result(30)
    assert torch.equal(held.ckpt.restore()["old"], expected)


def test_a_parameter_moved_to_other_storage_is_guarded_there(held: Any) -> None:
    """As `Module.to`, `load_state_dict(assign=True)` and flattening do after the guard."""
    pair = Pair()
    held.ckpt.guard(pair.optimizer)
    pair.late.data = pair.late.data.clone()
    expected = pair.late.detach().clone()
    save = held.ckpt.save_async(pair.state, step=1)
    assert save.stats.lazy_nbytes > 16 * MIB
    pair.late.data = torch.zeros(MIB)  # and again, before the copy: the old one is what counts
    held.go_on()
    save.result(30)
    assert torch.equal(held.ckpt.restore()["late"], expected)


def test_a_sparse_tensor_of_the_optimizers_is_no_obstacle(held: Any) -> None:
    """It has no address, so it is not lazy."""
    pair = Pair()
    diagonal = torch.arange(300).repeat(2, 1)
    sparse = torch.sparse_coo_tensor(diagonal, torch.ones(300), check_invariants=True)
    pair.optimizer.state[pair.late]["mask"] = sparse
    held.ckpt.guard(pair.optimizer)
    held.go_on()
    held.ckpt.save(pair.state | {"mask": sparse})
    assert torch.equal(held.ckpt.restore()["mask"].to_dense(), torch.eye(300))


def test_a_dead_optimizer_guards_nothing_more(held: Any) -> None:
    """It is not kept alive, and what it held is copied at once from then on."""
    pair = Pair()
    held.ckpt.guard(pair.optimizer)
    gone = weakref.ref(pair.optimizer)
    pending = held.ckpt.save_async(pair.state, step=1)
    before = pair.late.detach().clone()
    del pair.optimizer
    gc.collect()
    assert gone() is None
    held.go_on()
    pending.result(30)
    save = held.ckpt.save_async(pair.state, step=2)
    assert save.stats.lazy_nbytes == 0
    with torch.no_grad():
        pair.late.zero_()
    save.result(30)
    for step in (1, 2):
        assert torch.equal(held.ckpt.restore(step=step)["late"], before)


def test_guarding_twice_is_guarding_once(held: Any) -> None:
    pair = Pair()
    held.go_on()
    for _ in range(3):
        held.ckpt.guard(pair.optimizer, pair.optimizer)
    assert len(pair.optimizer._optimizer_step_pre_hooks) == 1
    held.ckpt.save(pair.state)


def test_closing_takes_the_hooks_back(held: Any) -> None:
    pair = Pair()
    held.ckpt.guard(pair.optimizer)
    pending = held.ckpt.save_async(pair.state)
    held.go_on()
    held.ckpt.close()
    assert pending.done() and not pair.optimizer._optimizer_step_pre_hooks
    pair.optimizer.step()
    with pytest.raises(ds.ClosedError):
        held.ckpt.guard(pair.optimizer)


def test_an_optimizer_does_not_keep_its_checkpointer_alive() -> None:
    pair = Pair()
    ckpt = ds.Checkpointer(MemoryTier(str(uuid4())))
    ckpt.guard(pair.optimizer)
    ckpt.save(pair.state)
    gone = weakref.ref(ckpt)
    del ckpt
    gc.collect()
    assert gone() is None
    pair.optimizer.step()


@pytest.mark.parametrize("wrong", [None, nn.Linear(2, 2), [torch.ones(2)], "adam"])
def test_what_is_no_optimizer_is_refused_with_a_way_out(held: Any, wrong: object) -> None:
    held.go_on()
    with pytest.raises(ds.UsageError, match=f"{type(wrong).__name__}.*fence"):
        held.ckpt.guard(wrong)


def test_a_part_that_was_caught_is_copied_at_once_as_a_whole() -> None:
    """Somebody breaks the promise there; swapping all weights must not cost a save for each."""
    guard = Guard()
    guard.distrust("model/a")
    assert guard._is_distrusted(("model", "c")) and not guard._is_distrusted(("optim", "b"))
