"""The states that are saved: a GPT with Adam's two moments, and a crowd of small tensors.

Values come from one block of random numbers, so they cost little to make, can be made again to
check what was loaded, and do not compress.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import prod

import numpy as np
import torch

State = dict[str, dict[str, torch.Tensor]]

KINDS = ("gpt", "small")
_BLOCK = 1 << 22
_VOCABULARY, _CONTEXT, _LAYERS = 50304, 1024, 12


def gpt_shapes(width: int) -> dict[str, tuple[int, ...]]:
    """Return the 148 parameters of a GPT-2 of 12 layers."""
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (_VOCABULARY, width),
        "wpe.weight": (_CONTEXT, width),
    }
    for layer in range(_LAYERS):
        for name, rows, columns in (
            ("attn.c_attn", 3 * width, width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", 4 * width, width),
            ("mlp.c_proj", width, 4 * width),
        ):
            shapes[f"h.{layer}.{name}.weight"] = (rows, columns)
            shapes[f"h.{layer}.{name}.bias"] = (rows,)
        for name in ("ln_1", "ln_2"):
            shapes[f"h.{layer}.{name}.weight"] = shapes[f"h.{layer}.{name}.bias"] = (width,)
    shapes["ln_f.weight"] = shapes["ln_f.bias"] = (width,)
    return shapes


def _gpt_width(mib: int) -> int:
    def distance(width: int) -> int:
        return abs(12 * sum(map(prod, gpt_shapes(width).values())) - (mib << 20))

    return min(range(8, 4096, 8), key=distance)


def shapes_of(kind: str, size: int) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the shapes of a state: `size` is MiB for `gpt`, the number of tensors for `small`."""
    if kind == "gpt":
        shapes = gpt_shapes(_gpt_width(size))
        return dict.fromkeys(("model", "exp_avg", "exp_avg_sq"), shapes)
    return {"model": {f"leaf.{i}": (256 + 8 * (i * 37 % 97),) for i in range(size)}}


@cache
def _block() -> torch.Tensor:
    numbers = np.random.default_rng(0).standard_normal(_BLOCK, dtype=np.float32)
    return torch.from_numpy(numbers)


def fill(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """Give the `index`-th tensor of a state its values."""
    flat, at, block = tensor.view(-1), index * 977 % _BLOCK, _block()
    done = 0
    while done < len(flat):
        count = min(len(flat) - done, _BLOCK - at)
        flat[done : done + count] = block[at : at + count]
        done, at = done + count, 0
    return tensor


def tensors(state: State) -> Iterator[tuple[str, torch.Tensor]]:
    """Walk a state; names are unique."""
    for part, found in state.items():
        for name, tensor in found.items():
            yield f"{part}/{name}", tensor


def make_state(kind: str, size: int, *, empty: bool = False) -> State:
    """Return the state, or one of its shapes that holds ones: memory that is there already."""
    state = {
        part: {name: torch.ones(shape) for name, shape in shapes.items()}
        for part, shapes in shapes_of(kind, size).items()
    }
    for index, (_, tensor) in enumerate(() if empty else tensors(state)):
        fill(tensor, index)
    return state


def is_exact(state: State) -> bool:
    """Tell whether a state that was loaded holds what `make_state` made, bit for bit."""
    return all(
        torch.equal(tensor.view(torch.int32), fill(torch.empty_like(tensor), i).view(torch.int32))
        for i, (_, tensor) in enumerate(tensors(state))
    )


def state_nbytes(kind: str, size: int) -> int:
    return 4 * sum(prod(s) for part in shapes_of(kind, size).values() for s in part.values())


def state_tensors(kind: str, size: int) -> int:
    return sum(len(part) for part in shapes_of(kind, size).values())
