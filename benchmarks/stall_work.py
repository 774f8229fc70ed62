"""What is trained while checkpoints are saved: a GPT with AdamW, and the shapes of a sharded run.

Both run on one core. The GPT computes for real; of the sharded run's 80 % equal shards, its one
large tensor and its crowd of tiny ones only the shapes matter, so its forward and backward are
matrix products of a fixed number, and its optimizer adds to every tensor.
"""

from __future__ import annotations

import random
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from math import prod

import states
import torch
from states import State
from torch import Tensor, nn
from torch.nn import functional

_LAYERS, _VOCABULARY, _CONTEXT = 24, 50304, 1024
_SHARD_NBYTES, _TINY_NBYTES, _MAX_TINY = 48 << 20, (1 << 10, 16 << 10), 2000
_GFLOP_PER_GIB = 60
_SIDE = 512


class Work(ABC):
    """A training loop's parts; the tensors of its state are the same ones all along."""

    optimizer: torch.optim.Optimizer

    @abstractmethod
    def state(self) -> State:
        """Return what a checkpoint holds: tensors that share memory with the training's."""

    @abstractmethod
    def forward_backward(self) -> None:
        """Compute what the optimizer's next step needs."""


class Block(nn.Module):
    """One layer, as GPT-2 has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.c_attn(self.ln_1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp_proj(functional.gelu(self.mlp_fc(self.ln_2(x))))


class Gpt(nn.Module):
    """GPT-2's architecture, with 24 layers as the medium one; the head is tied."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(_VOCABULARY, width), nn.Embedding(_CONTEXT, width)
        self.h = nn.ModuleList(Block(width) for _ in range(_LAYERS))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return functional.linear(self.ln_f(x), self.wte.weight)


def gpt_width(mib: int) -> int:
    """Return the width whose state (parameters and two moments) is nearest to `mib`."""

    def distance(width: int) -> int:
        layer = 12 * width * width + 13 * width
        count = (_VOCABULARY + _CONTEXT) * width + _LAYERS * layer + 2 * width
        return abs(12 * count - (mib << 20))

    return min([8, 16, 32, *range(64, 4096, 64)], key=distance)


class GptWork(Work):
    """Predicts random tokens: the losses mean nothing, the computation is the real one."""

    def __init__(self, mib: int, tokens: int) -> None:
        torch.manual_seed(0)
        self._model = Gpt(gpt_width(mib))
        self.optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4)
        self._tokens = torch.randint(_VOCABULARY, (1, min(tokens, _CONTEXT) + 1))

    def state(self) -> State:
        found: State = {"model": {}, "exp_avg": {}, "exp_avg_sq": {}, "step": {}}
        for name, parameter in self._model.named_parameters():
            found["model"][name] = parameter.detach()
            for key, tensor in self.optimizer.state[parameter].items():
                found[key][name] = tensor
        return found

    def forward_backward(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)  # memory stays the same in all iterations
        logits = self._model(self._tokens[:, :-1])
        functional.cross_entropy(logits.flatten(0, 1), self._tokens[:, 1:].flatten()).backward()


class Drift(torch.optim.Optimizer):
    """Adds a little to every parameter: writes all of them, and needs no gradients."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(1e-3)


def mix_shapes(mib: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes: 80 % of the bytes in equal shards, one large tensor, and tiny ones."""
    total, chance = mib << 20, random.Random(0)
    shapes: dict[str, tuple[int, ...]] = {
        f"tiny.{i}": (chance.randint(*_TINY_NBYTES) // 4,) for i in range(min(_MAX_TINY, 4 * mib))
    }
    tiny = 4 * sum(map(prod, shapes.values()))
    shards = max(4, round(0.8 * total / _SHARD_NBYTES))
    shapes["large"] = ((total // 5 - tiny) // 4096, 1024)
    rows = max(1, round(0.8 * total / shards) // 4096)
    return {**shapes, **{f"shard.{i}": (rows, 1024) for i in range(shards)}}


class MixWork(Work):
    def __init__(self, mib: int, tokens: int) -> None:
        shapes = mix_shapes(mib)
        self._parameters = {
            name: nn.Parameter(states.fill(torch.empty(shape), i))
            for i, (name, shape) in enumerate(shapes.items())
        }
        self.optimizer = Drift(self._parameters.values())
        self._factors = torch.randn(2, _SIDE, _SIDE)
        self._products = max(1, round(mib / 1024 * _GFLOP_PER_GIB * 1e9 / (2 * _SIDE**3)))

    def state(self) -> State:
        return {"shards": {name: p.detach() for name, p in self._parameters.items()}}

    def forward_backward(self) -> None:
        left, right = self._factors
        for _ in range(self._products):
            torch.mm(left, right)


WORKS: dict[str, type[GptWork | MixWork]] = {"gpt": GptWork, "mix": MixWork}


def nbytes(state: State) -> int:
    return sum(tensor.nbytes for _, tensor in states.tensors(state))


def fingerprint(state: State) -> dict[str, int]:
    """Return a checksum of every tensor."""
    return {
        name: zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy())
        for name, tensor in states.tensors(state)
    }
