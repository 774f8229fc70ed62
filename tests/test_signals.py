"""Preemption: what was saved is finished, and the signal does what it would have done."""

import signal
import threading
from typing import Any

import pytest

import datastates as ds
from datastates.testing import GatedTier
from datastates.tiers.memory import MemoryTier

PREAMBLE = """
import os, signal, sys, threading
import numpy as np
import datastates as ds
from datastates.testing import SlowTier
from datastates.tiers.zarr import ZarrTier
tier = SlowTier(ZarrTier(sys.argv[1]), latency_s={"seal": 0.5})
state = {"a": np.arange(1 << 20)}
"""


def terminated(script: Any) -> int:
    """Send SIGTERM to a script that trains; return the status that it ends with."""
    assert script.line() == "training"
    script.process.send_signal(signal.SIGTERM)
    status: int = script.process.wait(30)
    return status


def steps(path: Any) -> list[int]:
    with ds.Checkpointer(path) as ckpt:
        return ckpt.steps()


def test_the_pending_save_is_finished_and_the_process_ends_by_the_signal(
    start: Any, tmp_path: Any
) -> None:
    """Case 34: a long step is under way when the signal comes."""
    script = start(
        PREAMBLE
        + """
ckpt = ds.Checkpointer(tier)
ckpt.on_signal(signal.SIGTERM, grace_s=30)
ckpt.save_async(state, step=1)
print("training", flush=True)
threading.Event().wait()
""",
        tmp_path,
    )
    assert terminated(script) == -signal.SIGTERM
    assert steps(tmp_path) == [1]


def test_without_being_asked_nothing_changes_what_a_signal_does(start: Any, tmp_path: Any) -> None:
    """Case 35: the default disposition stays where nobody asked for another."""
    script = start(
        PREAMBLE
        + """
ckpt = ds.Checkpointer(tier)
ckpt.save_async(state, step=1)
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
print("training", flush=True)
threading.Event().wait()
""",
        tmp_path,
    )
    assert terminated(script) == -signal.SIGTERM


def test_the_handler_that_was_there_is_called_once_the_save_is_durable(
    start: Any, tmp_path: Any
) -> None:
    """Case 35."""
    script = start(
        PREAMBLE
        + """
def mine(signum, frame):
    print("mine", ckpt.steps(), flush=True)
    os._exit(7)
signal.signal(signal.SIGTERM, mine)
ckpt = ds.Checkpointer(tier)
ckpt.on_signal(signal.SIGTERM, grace_s=30)
ckpt.save_async(state, step=1)
print("training", flush=True)
threading.Event().wait()
""",
        tmp_path,
    )
    assert script.line() == "training"
    script.process.send_signal(signal.SIGTERM)
    assert script.line() == "mine [1]"
    assert script.process.wait(30) == 7


def test_a_last_save_is_taken_when_the_trainer_comes_to_it(start: Any, tmp_path: Any) -> None:
    """Case 34: the state is consistent there, and not where the signal came."""
    script = start(
        PREAMBLE
        + """
ckpt = ds.Checkpointer(tier)
ckpt.on_signal(signal.SIGTERM, grace_s=30, take_last=True)
print("training", flush=True)
while not ckpt.preempted:
    pass
ckpt.save_async(state, step=5)
print("never", flush=True)
""",
        tmp_path,
    )
    assert terminated(script) == -signal.SIGTERM
    assert steps(tmp_path) == [5]


def test_a_trainer_that_never_saves_again_ends_with_the_grace_time(
    start: Any, tmp_path: Any
) -> None:
    script = start(
        PREAMBLE
        + """
ckpt = ds.Checkpointer(tier)
ckpt.on_signal(signal.SIGTERM, grace_s=0.2, take_last=True)
print("training", flush=True)
while True:
    pass
""",
        tmp_path,
    )
    assert terminated(script) == -signal.SIGTERM
    assert steps(tmp_path) == []


def test_a_store_that_stands_still_costs_the_grace_time_and_no_more() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    tier = GatedTier(MemoryTier("signals"), "commit")
    try:
        with tier, ds.Checkpointer(tier) as ckpt:
            ckpt.on_signal(signal.SIGUSR1, grace_s=0.05)
            save = ckpt.save_async({"a": 1})
            assert tier.reached.wait(30)
            signal.raise_signal(signal.SIGUSR1)
            assert came == [signal.SIGUSR1] and ckpt.preempted and not save.done()
            tier.gate.set()
            save.result(30)
        assert signal.getsignal(signal.SIGUSR1) != ckpt._preemption._handle
        signal.raise_signal(signal.SIGUSR1)
        assert came == [signal.SIGUSR1] * 2
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_that_comes_while_a_lock_of_ours_is_held_does_not_hang() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    try:
        with ds.Checkpointer(MemoryTier("locked")) as ckpt:
            ckpt.on_signal(signal.SIGUSR1, grace_s=0.05)
            save = ckpt.save_async({"a": 1})
            with ckpt._saver._lock, save._lock:
                signal.raise_signal(signal.SIGUSR1)
            assert came == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_wrong_calls_say_what_is_wrong() -> None:
    with ds.Checkpointer(MemoryTier("wrong")) as ckpt:
        with pytest.raises(ds.UsageError, match="cannot be handled"):
            ckpt.on_signal(signal.SIGKILL)
        with pytest.raises(ds.UsageError, match="grace_s must be a positive number"):
            ckpt.on_signal(signal.SIGTERM, grace_s=0)
        errors: list[Exception] = []

        def elsewhere() -> None:
            try:
                ckpt.on_signal(signal.SIGTERM)
            except ds.UsageError as error:
                errors.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(30)
        assert "main thread" in str(errors[0])
