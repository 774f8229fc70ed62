"""What the model check drives: a trainer with host memory and a fake device, and a store."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
import pytest
import torch

import datastates as ds
from datastates.provider import Bytes
from datastates.testing import FakeArray, FakeDevice, FakeProvider, WrapperTier
from datastates.tiers.memory import MemoryTier

__all__ = ["ARENA", "DEADLINE_S", "LAZY", "SIZES", "Trainer"]

MIB = 1 << 20
ARENA = 8 * MIB
SIZES = {"two states": 2 * MIB, "one state": 6 * MIB, "less than a tensor": 11 * MIB}
"""Bytes of the largest tensor; about 2 MiB come on top."""

LAZY = ("host", "w", "v")
"""What the optimizer holds."""

DEADLINE_S = 60.0
_SOON_S = 0.03
T = TypeVar("T")


class Valve(WrapperTier):
    """A store that does nothing but what a test allows, call by call."""

    def __init__(self) -> None:
        super().__init__(MemoryTier(str(uuid4())))
        self._changed = threading.Condition()
        self._allowed = self._faults = 0
        self._open = False

    def allow(self, calls: int) -> None:
        with self._changed:
            self._allowed += calls
            self._changed.notify_all()

    def fail_next(self) -> None:
        with self._changed:
            self._faults += 1

    def set_open(self, is_open: bool) -> None:
        with self._changed:
            self._open = is_open
            self._changed.notify_all()

    def around(self, method: str, call: Callable[[], T]) -> T:
        if method in ("write", "seal", "commit"):
            self._pass()
        return call()

    def _pass(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._allowed or self._open, DEADLINE_S)
            self._allowed = max(0, self._allowed - 1)
            if self._faults:
                self._faults -= 1
                raise ds.StorageError("planted")

    def transfer(self, method: str, data: Bytes, call: Callable[[Bytes], None]) -> None:
        self.around(method, lambda: call(data))


class Optimizer:
    """A guarded one: whatever it holds is updated behind its hooks."""

    def __init__(self, tensors: list[Any]) -> None:
        self.param_groups, self.state = [{"params": tensors}], {}
        self.hooks: list[Callable[..., None]] = []

    def register_step_pre_hook(self, hook: Callable[..., None]) -> Any:
        self.hooks.append(hook)
        return type("Handle", (), {"remove": lambda _: self.hooks.remove(hook)})()


class Trainer:
    """Has a state in which every array is one value throughout, and knows which."""

    def __init__(self, size: int, seed: int, *, patient: bool, own_stream: bool, **options: Any):
        """Without patience a store that stands still fails saves, and never holds the trainer."""
        self._patient = patient
        self.device, self.valve = FakeDevice(seed), Valve()
        self._stream = self.device.stream() if own_stream else None
        options |= {"stall_timeout_s": DEADLINE_S if patient else 0.02}
        self.ckpt = ds.Checkpointer(
            self.valve, arena_nbytes=ARENA, providers=[FakeProvider()], **options
        )
        self.host, self.log = torch.zeros(size // 4), np.zeros(100_000, np.int32)
        self.arrays = {
            "w": FakeArray(np.zeros(MIB // 4, np.int32), self.device),
            "v": FakeArray(np.zeros(25_000, np.int64), self.device),
            "eager": FakeArray(np.zeros(50_000, np.float32), self.device),
            **{f"s{i}": FakeArray(np.zeros(20, np.float32), self.device) for i in range(9)},
        }
        self.values = dict.fromkeys(("host", "log", "n", *self.arrays), 0)
        """What the state is now: the value of each array."""
        self.optimizer = Optimizer([self.host, self.arrays["w"], self.arrays["v"]])

    def state(self) -> dict[str, Any]:
        return {"host": self.host, "log": self.log, "n": self.values["n"], **self.arrays}

    def add(self, name: str, counted: bool = True) -> None:
        """Add one, on the host or on its stream of the device."""
        self.values[name] += 1
        if name == "host":
            self.host.add_(1) if counted else np.add(self.host.numpy(), 1, out=self.host.numpy())
        elif name == "log":
            self.log += 1
        elif name != "n":
            array = self.arrays[name]
            with self._streaming():
                array.add_(1) if counted else array.add_uncounted_(1)

    def _streaming(self) -> AbstractContextManager[None]:
        return nullcontext() if self._stream is None else self.device.using(self._stream)

    def call(self, blocks: Callable[[], T]) -> T:
        """Make a call that may block; what stands still moves on if it does not return soon."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                with self._streaming():
                    done.set_result(blocks())
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        if not wait([done], _SOON_S).done:
            self.device.go()
            self.valve.set_open(self._patient)
            ended = wait([done], DEADLINE_S).done
            self.valve.set_open(False)
            if not ended:
                pytest.fail(f"deadlock: {self.ckpt.statistics()}")
        return done.result()

    def let_saves_end(self) -> None:
        self.device.go()
        self.valve.set_open(True)
        with suppress(ds.SaveError, ExceptionGroup):  # the handles tell
            self.ckpt.wait(DEADLINE_S)
        assert self.ckpt.statistics().in_flight == ()
        self.valve.set_open(False)

    def check_own_memory(self) -> None:
        """Training went on, whatever became of the saves."""
        with self._streaming():
            current = {name: array.numpy() for name, array in self.arrays.items()}
        current |= {"host": self.host.numpy(), "log": self.log}
        for name, array in current.items():
            assert np.unique(array).tolist() == [self.values[name]], name

    def close(self) -> None:
        for step in self.ckpt.steps():
            self.ckpt.delete(step)
        self.ckpt.close(DEADLINE_S)
