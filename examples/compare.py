"""Compare two runs bit for bit: their losses, and all that is in their checkpoints."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch


@dataclass(slots=True)
class Comparison:
    """How two trees compare."""

    tensors: int = 0
    nbytes: int = 0
    """Of all tensors."""
    others: int = 0
    """Values that are no tensors."""
    differences: list[str] = field(default_factory=list)
    """What differs, by name; empty when the trees are equal."""


def compare_losses(expected: Mapping[int, float], actual: Mapping[int, float]) -> list[str]:
    """Return the steps of `actual` whose loss is not that of `expected`, to the last bit."""
    return [
        f"step {step}: {loss!r} instead of {expected.get(step)!r}"
        for step, loss in actual.items()
        if loss != expected.get(step)
    ]


def compare_trees(expected: object, actual: object) -> Comparison:
    """Compare two trees as `Checkpointer.restore()` returns them, leaf by leaf."""
    left, right = dict(_leaves(expected)), dict(_leaves(actual))
    result = Comparison()
    for name in left | right:
        if name not in left or name not in right:
            result.differences.append(f"{name}: in one of the two only")
            continue
        if not _same(left[name], right[name]):
            result.differences.append(f"{name}: differs")
        _count(left[name], result)
    return result


def _leaves(tree: object, name: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{name}/{key}")
    elif isinstance(tree, list | tuple) and tree:
        for index, value in enumerate(tree):
            yield from _leaves(value, f"{name}/{index}")
    elif isinstance(tree, torch.Generator):
        yield name, tree.get_state()
    else:
        yield name, tree


def _same(a: object, b: object) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return bool(a == b)


def _count(leaf: object, result: Comparison) -> None:
    if isinstance(leaf, torch.Tensor | np.ndarray):
        result.tensors += 1
        result.nbytes += leaf.nbytes
    else:
        result.others += 1
