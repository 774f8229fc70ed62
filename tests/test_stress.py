"""Training that saves at every step, with everything that may go wrong in a trainer."""

import random
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
import torch
from torch import nn

import datastates as ds
from datastates.testing import SlowTier
from datastates.tiers.memory import MemoryTier

MIB = 1 << 20
WIDTH = 160  # a layer is 100 KiB: large enough to be copied lazily
STEPS = 500


@pytest.fixture(autouse=True)
def one_core() -> Iterator[None]:
    """Layers so small are slower on several cores, and very slow on busy ones."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def checksum(net: dict[str, torch.Tensor], optimizer: dict[str, Any], step: int) -> int:
    """Return one number for every byte of a state."""
    found = zlib.crc32(repr((step, optimizer["param_groups"])).encode())
    states = optimizer["state"]
    for values in (net, *(states[i] for i in sorted(states))):
        for name in sorted(values):
            found = zlib.crc32(
                values[name].detach().numpy().tobytes(), zlib.crc32(name.encode(), found)
            )
    return found


def by_data(t: torch.Tensor) -> None:
    t.data.mul_(1.01)


def by_numpy(t: torch.Tensor) -> None:
    t.detach().numpy()[:] *= 1.01


def by_operation(t: torch.Tensor) -> None:
    with torch.no_grad():
        t.add_(0.001)


PLANTS: tuple[Callable[[torch.Tensor], None], ...] = (by_data, by_numpy, by_operation)


class Run:
    """A model in training; proves each save as soon as it has ended, from another reader."""

    def __init__(self, ckpt: ds.Checkpointer, reader: ds.Checkpointer, seed: int) -> None:
        torch.manual_seed(seed)
        layers = [m for _ in range(8) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        self.net = nn.Sequential(*layers, nn.BatchNorm1d(WIDTH))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01, fused=seed % 2 == 0)
        self.ckpt, self.reader, self.chance = ckpt, reader, random.Random(seed)
        self.expected: dict[int, int] = {}
        self.planted: dict[int, str] = {}
        self.pending: deque[ds.Save] = deque()
        self.published: list[int] = []
        self.lost: dict[int, str] = {}
        self.lazy_nbytes = 0
        ckpt.guard(self.optimizer)

    def save(self, step: int) -> None:
        state = {"net": self.net, "optimizer": self.optimizer, "step": step}
        state_dicts = self.net.state_dict(), self.optimizer.state_dict()
        self.expected[step] = checksum(*state_dicts, step)
        self.pending.append(self.ckpt.save_async(state, step=step))

    def plant(self, step: int) -> None:
        """Change one tensor that is copied lazily, outside of the optimizer's step."""
        index = self.chance.randrange(8)
        weight = self.net[2 * index].weight
        kind = self.chance.choice(["weight", "exp_avg", "exp_avg_sq"])
        tensor = weight if kind == "weight" else self.optimizer.state[weight][kind]
        self.chance.choice(PLANTS)(tensor)
        names = {"weight": f"net/{2 * index}.weight"}
        self.planted[step] = names.get(kind, f"optimizer/state~{2 * index}~{kind}")

    def train(self, step: int) -> None:
        """Take a step, with more than one backward now and then."""
        for _ in range(self.chance.choice([1, 1, 2])):
            x = torch.randn(8, WIDTH)
            (self.net(x) - x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def prove(self, timeout_s: float = 0.0) -> None:
        """Compare what has ended; waits for it where there is a timeout."""
        while self.pending and (timeout_s or self.pending[0].done()):
            save = self.pending.popleft()
            try:
                self.lazy_nbytes += save.result(timeout_s).lazy_nbytes
            except ds.SaveError as error:
                assert isinstance(error.__cause__, ds.ChangedError | ds.SaveSkippedError), error
                self.lost[save.step] = getattr(error.__cause__, "key", "")
                continue
            found = self.reader.restore(step=save.step)
            proven = checksum(found["net"], found["optimizer"], found["step"])
            assert proven == self.expected.pop(save.step), f"step {save.step} is not as it was"
            self.published.append(save.step)
            self.reader.delete(save.step)


def run(seed: int, steps: int, **options: Any) -> Run:
    tier = MemoryTier(str(uuid4()))
    slow = SlowTier(tier, latency_s={"write": 0.001}, bytes_per_s=250e6)
    with (
        ds.Checkpointer(slow, arena_nbytes=8 * MIB, **options) as ckpt,
        ds.Checkpointer(tier) as reader,
    ):
        made = Run(ckpt, reader, seed)
        for step in range(steps):
            made.save(step)
            if step and made.chance.random() < 0.06:
                made.plant(step)
            if made.chance.random() < 0.5:
                made.prove()
            made.train(step)
        made.prove(timeout_s=60)
        assert ckpt.statistics().arena.used_nbytes == 0
        statistics = ckpt.statistics()
        assert statistics.durable == len(made.published)
        assert statistics.failed + statistics.skipped == len(made.lost)
    return made


@pytest.mark.slow
def test_five_hundred_steps_are_each_exact_or_named(caplog: pytest.LogCaptureFixture) -> None:
    """Case 23: a store that is slower than training, and tensors that change behind the guard."""
    made = run(seed=1, steps=STEPS)
    assert sorted([*made.published, *made.lost]) == list(range(STEPS))
    assert made.lost and made.lost.items() <= made.planted.items(), "of each, the very tensor"
    assert len(made.published) > 0.9 * STEPS
    assert made.lazy_nbytes > STEPS * MIB // 10, "much was copied lazily until its part was caught"


@pytest.mark.parametrize("busy", ["skip", "supersede"])
def test_what_is_published_under_each_policy_is_exact(busy: str) -> None:
    """Cases 23 and 28: with a fused optimizer, whose updates nothing counts."""
    made = run(seed=2, steps=120, busy=busy)
    assert sorted([*made.published, *made.lost]) == list(range(120))
    named = {step: name for step, name in made.lost.items() if name}
    assert named.items() <= made.planted.items()
    assert len(made.published) > 5
