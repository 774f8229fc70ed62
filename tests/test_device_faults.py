"""Devices and programs that do what they may not: nothing wrong is published, nothing leaks."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from device_support import (
    COMPUTE_FIRST,
    COPIES_FIRST,
    MIB,
    ORDERS,
    Make,
    checkpointer,
    memory,
    numbers,
    on,
)

import datastates as ds
from datastates.device import Bytes, Event, Transfer
from datastates.errors import ChangedError
from datastates.testing import (
    FakeDevice,
    FakeEvent,
    FakePins,
    GatedTier,
)

# What changes although it may not.

CHANGES = {
    "counted": lambda w: w.add_(100),
    "not counted": lambda w: w.add_uncounted_(100),
    "freed": lambda w: w.free(),
}


@pytest.mark.parametrize("change", ["counted", "not counted", "freed"])
def test_a_change_before_the_copy_is_queued_fails_the_save_by_name(make: Make, change: str) -> None:
    """Room in the arena comes late, so the copy does; training goes on."""
    device = FakeDevice(COMPUTE_FIRST)
    with GatedTier(memory(), "write") as tier:
        ckpt = make(tier, arena_nbytes=8 * MIB)
        before, w = on(device, 7 * MIB), on(device)
        first = ckpt.save_async({"w": before}, step=1)
        second = ckpt.save_async({"w": w, "n": 1}, step=2, lazy=["w"])
        CHANGES[change](w)
        tier.gate.set()
        ckpt.fence()
        first.result(30)
        with pytest.raises(ds.SaveError, match="w changed after save_async") as caught:
            second.result(30)
        assert (
            isinstance(caught.value.__cause__, ChangedError) and caught.value.__cause__.key == "w"
        )
        ckpt.save({"w": on(device)}, step=3)
        assert ckpt.steps() == [1, 3]


@pytest.mark.parametrize("change", ["counted", "not counted"])
def test_a_change_under_the_copy_fails_the_save_by_name(make: Make, change: str) -> None:
    """The copy is queued already, and nothing holds the change behind it."""
    device, ckpt = FakeDevice(COMPUTE_FIRST), make()
    w = on(device)
    with device.stopped():
        save = ckpt.save_async({"w": w}, lazy=["w"])
        device.until_copies(1)
        CHANGES[change](w)
        ckpt.fence()
    with pytest.raises(ds.SaveError, match="w changed after save_async"):
        save.result(30)
    assert ckpt.steps() == []


def test_a_change_after_the_copy_does_no_harm(device: FakeDevice, make: Make) -> None:
    ckpt, w = make(), on(device)
    ckpt.save({"w": w}, step=1, lazy=["w"])
    w.add_(100)
    ckpt.fence()
    assert (ckpt.restore()["w"] == numbers(3 * MIB)).all()


def test_an_array_that_was_freed_behind_the_queued_copy_is_saved(make: Make) -> None:
    """Its memory is kept until the copy has run; only who vouched for it may not do that."""
    device, ckpt = FakeDevice(COMPUTE_FIRST), make()
    w = on(device)
    with device.stopped():
        save = ckpt.save_async({"w": w})
        w.free()
        del w
    save.result(30)
    assert (ckpt.restore()["w"] == numbers(3 * MIB)).all()


def test_a_device_that_fails_costs_the_save_not_the_caller(make: Make) -> None:
    device, ckpt = FakeDevice(), make()
    with device.stopped():
        save = ckpt.save_async({"w": on(device)}, step=1)
        device.fail("out of luck")
    with pytest.raises(ds.SaveError, match="out of luck"):
        save.result(30)
    refused = ckpt.save_async({"w": on(device)}, step=2)
    assert isinstance(refused.exception(), ds.SaveError)
    ckpt.save({"w": on(FakeDevice(pins=device.pins))}, step=3)
    assert ckpt.steps() == [3]


# Pinned memory.


def test_nothing_stays_pinned_after_close() -> None:
    """Case 26, on a device without hardware: opened, saved and closed 20 times."""
    pins = FakePins()
    devices = [FakeDevice(seed, pins=pins) for seed in range(2)]
    for step in range(20):
        state = {"a": on(devices[0], step * 100_000 + 4, step), "b": on(devices[1], 5 * MIB)}
        with checkpointer(arena_nbytes=None) as ckpt:
            ckpt.save_async(state, lazy=["a"])
            ckpt.wait(30)
            assert pins.nbytes == ckpt.statistics().arena.nbytes > 0
        assert_unpinned(pins)
    assert pins.faults == [] and not any(device.pageable for device in devices)


def assert_unpinned(pins: FakePins) -> None:
    """The pipeline's last thread gives the memory back, just after the last save has ended."""
    for thread in threading.enumerate():
        if thread.name == "datastates-prune-0":
            thread.join(30)
    assert pins.nbytes == 0


def test_memory_that_comes_later_is_pinned_as_well(any_device: FakeDevice, make: Make) -> None:
    """The arena was there before, for a state of the host's; then it grows."""
    ckpt = make()
    ckpt.save({"host": np.ones(MIB)}, step=1)
    assert any_device.pins.nbytes == 0
    ckpt.save({"w": on(any_device, 24 * MIB)}, step=2)
    assert any_device.pins.nbytes == ckpt.statistics().arena.nbytes >= 24 * MIB


# The proof can fail.


class HoldsNothing(FakeDevice):
    """A planted bug: what follows the fence, or the call, may overtake the copies."""

    def hold(self, event: Event) -> None:
        pass


class WaitsForNothing(FakeDevice):
    """A planted bug: copies do not wait for what the caller had queued before."""

    def copy(self, transfers: Sequence[Transfer], out: Bytes, after: Event) -> FakeEvent:
        return super().copy(transfers, out, FakeEvent(self, reached=True))


def published(device: FakeDevice, make: Make, lazy: Sequence[str]) -> np.ndarray[Any, Any] | None:
    """Save an array between two updates; return what was published, which should start at 5."""
    ckpt, w = make(), on(device)
    with device.stopped():
        w.add_(5)
        save = ckpt.save_async({"w": w}, lazy=lazy or None)
        ckpt.fence()
        w.add_uncounted_(100)
    try:
        save.result(30)
    except ds.SaveError as error:
        assert isinstance(error.__cause__, ChangedError)
        return None
    found: np.ndarray[Any, Any] = ckpt.restore()["w"]
    return found


def is_right(found: np.ndarray[Any, Any] | None) -> bool:
    return found is not None and bool((found == numbers(3 * MIB, 5)).all())


@pytest.mark.parametrize("lazy", [(), ("w",)], ids=["captured", "lazy"])
@pytest.mark.parametrize("order", ORDERS)
def test_without_a_bug_the_right_values_are_published(
    make: Make, order: str, lazy: Sequence[str]
) -> None:
    assert is_right(published(FakeDevice(ORDERS[order]), make, lazy))


def test_a_device_that_holds_nothing_back_publishes_later_values(make: Make) -> None:
    """The tests above would see it: in some order the update overtakes the copy."""
    found = published(HoldsNothing(COMPUTE_FIRST), make, ())
    assert found is not None and (found == numbers(3 * MIB, 105)).all()


def test_of_what_is_lazy_not_even_such_a_device_publishes_anything(make: Make) -> None:
    assert published(HoldsNothing(COMPUTE_FIRST), make, ("w",)) is None


def test_copies_that_wait_for_nothing_publish_earlier_values(make: Make) -> None:
    found = published(WaitsForNothing(COPIES_FIRST), make, ())
    assert found is not None and (found == numbers(3 * MIB)).all()


def test_of_what_is_lazy_earlier_values_are_not_published(make: Make) -> None:
    assert published(WaitsForNothing(COPIES_FIRST), make, ("w",)) is None


@pytest.mark.parametrize("kind", [HoldsNothing, WaitsForNothing])
def test_a_random_order_finds_such_a_bug_too(make: Make, kind: Callable[[int], FakeDevice]) -> None:
    """Torn: some pieces of the copy before the update and some behind it."""
    found = [published(kind(seed), make, ()) for seed in range(12)]
    assert not all(map(is_right, found))
    assert any(each is not None and len(set(each - numbers(3 * MIB))) > 1 for each in found)
