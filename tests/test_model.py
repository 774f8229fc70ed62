"""A model of snapshot, fence, budget and back-pressure: nothing is torn, and nothing stands still.

A trainer of host tensors, numpy arrays and arrays of a fake device is driven through any order of
updates, saves, fences, faults and restores. What each step must hold is known from plain numbers.
`DATASTATES_MODEL_EXAMPLES=2000 pytest tests/test_model.py --timeout 900` looks for longer.
"""

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from model_trainer import ARENA, LAZY, SIZES, Trainer

import datastates as ds
from datastates.errors import ChangedError

EXAMPLES = int(os.environ.get("DATASTATES_MODEL_EXAMPLES", "100"))


@dataclass
class Expected:
    """A save, what it must hold, and what may have gone wrong with it."""

    handle: ds.Save
    values: dict[str, int]
    fenced: bool = False
    changed: set[str] = field(default_factory=set)
    """What was changed although it may not have been copied."""

    def is_published(self) -> bool:
        return self.handle.done() and self.handle.exception() is None


class Training(RuleBasedStateMachine):
    """One run; each rule is something that a trainer, a device or a store does."""

    def __init__(self) -> None:
        super().__init__()
        self.saves: list[Expected] = []
        self.faults = 0
        self.trainer: Trainer | None = None

    @initialize(
        size=st.sampled_from(sorted(SIZES.values())),
        busy=st.sampled_from(["wait", "skip", "supersede"]),
        lazy_check=st.sampled_from(["sampled", "full"]),
        guard=st.booleans(),
        patient=st.booleans(),
        own_stream=st.booleans(),
        seed=st.integers(0, 1 << 16),
    )
    def begin(self, size: int, seed: int, guard: bool, patient: bool, **options: Any) -> None:
        self.busy, self.patient = options["busy"], patient
        self.trainer = self.t = Trainer(size, seed, patient=patient, **options)
        if guard:
            self.t.ckpt.guard(self.t.optimizer)

    # The trainer.

    @rule(names=st.sets(st.sampled_from(["log", "n", "eager", "s0", "s8"]), min_size=1))
    def change_what_is_not_lazy(self, names: set[str]) -> None:
        """Never needs a fence, not even while the copies are queued."""
        for name in names:
            self.t.add(name)

    @rule(
        how=st.sampled_from(["lazy", "eager", "guarded"]),
        then=st.sampled_from(["nothing", "update", "a bug"]),
        counted=st.booleans(),
    )
    def save(self, how: str, then: str, counted: bool) -> None:
        """With `guarded`, what the optimizer holds is lazy if it is under guard."""
        lazy = list(LAZY) if how == "lazy" else None
        state, values, step = self.t.state(), dict(self.t.values), len(self.saves)
        handle = self.t.call(lambda: self.t.ckpt.save_async(state, step=step, lazy=lazy))
        self.saves.append(Expected(handle, values))
        if then == "update":
            self.update(by_hand=False, counted=counted)
        elif then == "a bug":
            for name in LAZY:
                self.change_without_a_fence(name, counted)

    @rule(by_hand=st.booleans(), counted=st.booleans())
    def update(self, by_hand: bool, counted: bool) -> None:
        """The fence, then an update of everything that was lazy."""
        hooks = self.t.optimizer.hooks
        if by_hand or not hooks:
            self.t.call(self.t.ckpt.fence)
        for hook in () if by_hand else hooks:
            self.t.call(lambda h=hook: h(self.t.optimizer, (), {}))
        self.fenced()
        for name in LAZY:
            self.t.add(name, counted)

    def fenced(self) -> None:
        for save in self.saves:
            save.fenced = True

    @rule(name=st.sampled_from(LAZY), counted=st.booleans())
    def change_without_a_fence(self, name: str, counted: bool) -> None:
        """The bug that is to be caught, where the copy was not there yet."""
        for save in self.saves:  # not the last only: if that was refused, the one before may copy
            if not save.fenced:
                save.changed.add(name)
        self.t.add(name, counted)

    @rule(back=st.integers(0, 3), in_place=st.booleans())
    def restore(self, back: int, in_place: bool) -> None:
        """Into the running state, too: that is an update like any other."""
        published = [save for save in self.saves if save.is_published()]
        if not published:
            return
        found = published[-1 - back % len(published)]
        if not in_place:
            self.check(found)
            return
        state, step = self.t.state(), found.handle.step
        restored = self.t.call(lambda: self.t.ckpt.restore(into=state, step=step))
        self.t.values = dict(found.values)
        assert restored["n"] == found.values["n"]
        self.fenced()

    # The device and the store.

    @rule()
    def stop_the_device(self) -> None:
        self.t.device.stop()

    @rule(pieces=st.integers(1, 30))
    def let_the_device_go_on(self, pieces: int) -> None:
        self.t.device.run(pieces)

    @rule()
    def let_the_device_go(self) -> None:
        self.t.device.go()

    @rule(calls=st.integers(1, 12))
    def let_the_store_go_on(self, calls: int) -> None:
        self.t.valve.allow(calls)

    @rule()
    def let_the_store_fail(self) -> None:
        self.faults += 1
        self.t.valve.fail_next()

    @rule()
    def let_the_saves_end(self) -> None:
        self.t.let_saves_end()

    # What holds at any time.

    @invariant()
    def memory_is_bounded(self) -> None:
        arena = self.t.ckpt.statistics().arena
        assert arena.used_nbytes <= arena.nbytes <= ARENA

    @invariant()
    def memory_is_pinned_while_it_is_used(self) -> None:
        assert self.t.device.pins.faults == [] and self.t.device.pageable == 0

    # What holds at the end.

    def teardown(self) -> None:
        if self.trainer is None:
            return
        try:
            self.t.let_saves_end()
            for save in self.saves:
                self.judge(save)
            assert self.t.ckpt.statistics().arena.used_nbytes == 0
            published = [save.handle.step for save in self.saves if save.is_published()]
            assert self.t.ckpt.steps() == published
            self.t.check_own_memory()
        finally:
            self.t.close()

    def judge(self, save: Expected) -> None:
        """Each handle has ended: durable and right, failed for a reason, or skipped by a policy."""
        assert save.handle.done()
        error = save.handle.exception()
        cause = None if error is None else error.__cause__
        if error is None:
            self.check(save)
        elif isinstance(error, ds.SaveSkippedError):
            assert self.busy != "wait"
        elif isinstance(cause, ChangedError):
            assert cause.key in save.changed
        elif isinstance(cause, ds.SaveTimeoutError):
            assert not self.patient
        else:
            assert isinstance(cause, ds.StorageError) and self.faults

    def check(self, save: Expected) -> None:
        """Whatever was published is exactly what there was at the call."""
        restored = self.t.ckpt.restore(step=save.handle.step)
        assert restored.pop("n") == save.values["n"]
        assert {*restored, "n"} == set(save.values)
        for name, array in restored.items():
            assert np.unique(np.asarray(array)).tolist() == [save.values[name]], name


def test_no_order_of_events_publishes_a_torn_state_or_stands_still() -> None:
    """Cases 23, 27, 28, 29, 33: each handle ends, and what is published is as of its call."""
    run_state_machine_as_test(
        Training,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
