"""What a contender is in a training loop; `stall_peers` has them all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
from contenders import Contender
from states import State


class CannotRunError(Exception):
    """This contender cannot run here; the message says why."""


def _nothing() -> None:
    pass


class InTraining(Contender):
    """A contender that is used in a training loop."""

    name = "some contender"
    environment: ClassVar[str | None] = None
    """Which of `peers/*.txt` it needs; None for what is installed beside datastates."""
    packages: ClassVar[tuple[str, ...]] = ("torch",)
    """Whose versions are recorded."""
    background: ClassVar[bool] = True
    """Whether it stores while training goes on."""
    syncs: ClassVar[str] = "nothing"
    """What it makes durable by itself; the rest is synced for it, timed."""
    remark: ClassVar[str] = ""

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Get to know the optimizer, once, before the first save."""

    def fence(self) -> AbstractContextManager[Any]:
        """Return what the optimizer's step runs in."""
        return nullcontext()

    def budget_nbytes(self) -> int | None:
        """Return the most memory that it promises to take."""
        return None

    def place(self, number: int) -> Path:
        return self.root / str(number)


class Nobody(InTraining):
    """Saves nothing: how much the loop varies by itself."""

    name = "no checkpoints"
    saves = loads = background = False
    durable = True

    def save(self, state: State, number: int) -> Callable[[], None]:
        return _nothing

    def load(self, state: State, number: int) -> object:
        return None


class OneAtATime(InTraining):
    """Waits for the save before, as its documentation advises, or memory would pile up."""

    _last: Callable[[], object] = staticmethod(_nothing)

    def save(self, state: State, number: int) -> Callable[[], None]:
        self._last()
        self._last = begun = self.begin(state, number)
        return lambda: (begun(), None)[1]

    @abstractmethod
    def begin(self, state: State, number: int) -> Callable[[], object]:
        """Start to save; return what waits for the end, as often as it is called."""
