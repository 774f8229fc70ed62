"""The order of copies and changes on a device, proven on one that runs whatever order is legal."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from device_support import COMPUTE_FIRST, COPIES_FIRST, MIB, Make, blocked, numbers, on

from datastates.testing import (
    FakeArray,
    FakeDevice,
    FakePins,
)


class Optimizer:
    """As much of one as a guard needs; each step adds one to its parameters."""

    def __init__(self, *arrays: FakeArray, counted: bool = True) -> None:
        self.param_groups, self.state = [{"params": list(arrays)}], {}
        self._hooks: list[Callable[..., None]] = []
        self._counted = counted

    def register_step_pre_hook(self, hook: Callable[..., None]) -> Any:
        self._hooks.append(hook)
        optimizer = self

        class Handle:
            def remove(self) -> None:
                optimizer._hooks.remove(hook)

        return Handle()

    def step(self) -> None:
        for hook in self._hooks:
            hook(self, (), {})
        for array in self.param_groups[0]["params"]:
            (array.add_ if self._counted else array.add_uncounted_)(1)


# Right whatever runs first.


def test_lazy_copies_see_the_values_of_the_call(device: FakeDevice, make: Make) -> None:
    """Case 23: updates queued before the call are in, those behind the fence are not."""
    ckpt, w = make(), on(device)
    w.add_(5)
    with device.stopped():
        save = ckpt.save_async({"w": w}, lazy=["w"])
        ckpt.fence()
        for _ in range(3):
            w.add_(100)
        assert not blocked(device)
    assert save.result(30).lazy_nbytes > 3 * MIB
    assert (ckpt.restore()["w"] == numbers(3 * MIB, 5)).all()
    assert (w.numpy() == numbers(3 * MIB, 305)).all()


@pytest.mark.parametrize("counted", [True, False])
def test_a_guarded_optimizer_may_step_at_once(
    device: FakeDevice, make: Make, counted: bool
) -> None:
    """The fence makes the device wait, not the host; for kernels that count nothing, too."""
    ckpt, w = make(), on(device)
    optimizer = Optimizer(w, counted=counted)
    ckpt.guard(optimizer)
    with device.stopped():
        saves = [ckpt.save_async({"w": w}, step=0)]
        optimizer.step()
        optimizer.step()
        assert not blocked(device)
    for step in (1, 2, 3):
        saves.append(ckpt.save_async({"w": w}, step=step))
        optimizer.step()
        optimizer.step()
    for step, save in enumerate(saves):
        assert save.result(30).lazy_nbytes > 0
        assert (ckpt.restore(step=step)["w"] == numbers(3 * MIB, 2 * step)).all()


def test_what_nobody_vouched_for_may_change_right_after_the_call(
    device: FakeDevice, make: Make
) -> None:
    """Case 23: captured in the order of the stream, and the host has not waited for the device."""
    ckpt, w = make(), on(device)
    w.add_(5)
    with device.stopped():
        save = ckpt.save_async({"w": w})
        w.add_(100)
        w.add_uncounted_(100)
        assert not blocked(device)
    assert save.result(30).lazy_nbytes == 0
    assert (ckpt.restore()["w"] == numbers(3 * MIB, 5)).all()


def test_a_single_value_on_a_device_is_in_the_same_order(device: FakeDevice, make: Make) -> None:
    """The step counter of a fused optimizer lies there."""
    ckpt, n = make(), FakeArray(np.float32([7]).reshape(()), device)
    with device.stopped():
        save = ckpt.save_async({"n": n})
        n.add_(1)
        assert not blocked(device)
    save.result(30)
    assert ckpt.restore()["n"] == 7


def test_work_on_a_stream_of_the_callers_is_ordered_as_well(device: FakeDevice, make: Make) -> None:
    ckpt, w, v = make(), on(device), on(device)
    with device.using(device.stream()), device.stopped():
        w.add_(5)
        v.add_(5)
        save = ckpt.save_async({"w": w, "v": v}, lazy=["w"])
        v.add_(100)
        ckpt.fence()
        w.add_(100)
        assert not blocked(device)
    save.result(30)
    restored = ckpt.restore()
    assert (restored["w"] == numbers(3 * MIB, 5)).all()
    assert (restored["v"] == numbers(3 * MIB, 5)).all()


def test_restoring_right_after_the_call_does_not_reach_into_its_copies(
    device: FakeDevice, make: Make
) -> None:
    """What restores writes from other threads, so on other streams than the caller's."""
    ckpt, w = make(), on(device)
    ckpt.save({"w": w}, step=1)
    with device.using(device.stream()):
        w.add_(5)
        device.stop()
        save = ckpt.save_async({"w": w}, step=2)
        later = threading.Timer(0.05, device.go)
        later.start()
        ckpt.restore(into={"w": w}, step=1)
    later.join()
    save.result(30)
    assert (ckpt.restore(step=2)["w"] == numbers(3 * MIB, 5)).all()
    assert (w.numpy() == numbers(3 * MIB)).all()


def test_restoring_comes_behind_what_the_caller_has_queued(device: FakeDevice, make: Make) -> None:
    ckpt, w = make(), on(device)
    ckpt.save({"w": w}, step=1)
    with device.using(device.stream()):
        w.add_(5)
        ckpt.restore(into={"w": w})
        w.add_(7)
        assert (w.numpy() == numbers(3 * MIB, 7)).all()


def test_an_arena_smaller_than_an_array_takes_it_in_pieces(device: FakeDevice, make: Make) -> None:
    ckpt, w = make(arena_nbytes=8 * MIB), on(device, 20 * MIB)
    optimizer = Optimizer(w)
    ckpt.guard(optimizer)
    for step in range(3):
        ckpt.save_async({"w": w}, step=step)
        optimizer.step()
    ckpt.wait(30)
    for step in range(3):
        assert (ckpt.restore(step=step)["w"] == numbers(20 * MIB, step)).all()
    assert ckpt.statistics().arena.nbytes <= 8 * MIB


# The host does not wait.


def test_host_memory_does_not_wait_behind_copies_of_a_device(
    any_device: FakeDevice, make: Make
) -> None:
    """Beside a model on a device, every state has some on the host; its copy must not queue."""
    ckpt = make()
    state = {
        "device": [on(any_device) for _ in range(6)],
        "host": [np.ones(MIB, np.uint8) for _ in range(3)],
        "lazy": torch.ones(MIB // 4),
    }
    with any_device.stopped():
        save = ckpt.save_async(state, lazy=["lazy"])
        ckpt.fence()
        assert not blocked(any_device)
    save.result(30)


def test_thousands_of_small_arrays_are_a_few_copies_and_a_few_waits(
    any_device: FakeDevice, make: Make
) -> None:
    ckpt = make()
    arrays = [on(any_device, 400, i) for i in range(5000)]
    ckpt.save({"arrays": arrays})
    assert any_device.transfers == 5000
    assert any_device.copies <= 5000 / 256 + 1
    assert len(any_device.waits) <= any_device.copies
    restored = ckpt.restore()["arrays"]
    assert all((found == numbers(400, i)).all() for i, found in enumerate(restored))


def test_several_devices_are_copied_each_in_its_order(make: Make) -> None:
    pins = FakePins()
    devices = [FakeDevice(order, pins=pins) for order in (COMPUTE_FIRST, COPIES_FIRST, 1)]
    ckpt = make()
    state = {f"w{i}": [on(device), on(device, 100)] for i, device in enumerate(devices)}
    for device in devices:
        device.stop()
    save = ckpt.save_async(state, lazy=["w0", "w1"])
    ckpt.fence()
    for big, small in state.values():
        big.add_(7)
        small.add_(7)
    assert not any(map(blocked, devices))
    for device in reversed(devices):
        device.go()
    save.result(30)
    for big, small in ckpt.restore().values():
        assert (big == numbers(3 * MIB)).all() and (small == numbers(100)).all()
    assert [device.transfers for device in devices] == [2, 2, 2]
    assert pins.faults == [] and not any(device.pageable for device in devices)
