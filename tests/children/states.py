"""The states that children save, so that a test knows what must come back."""

from __future__ import annotations

from typing import Any

import numpy as np


def state(seed: int, size: int = 300_000) -> dict[str, Any]:
    """Return a state of every kind of file: shard, large and small array, inline value, node.

    With the default size and the smallest arena, `big` is a shard of two pieces.
    """
    rng = np.random.default_rng(seed)
    return {
        "model": {"w": rng.random(20_000), "b": rng.random(7, np.float32), "one": np.array(seed)},
        "big": rng.random(size),
        "log": [seed, "text", None, (1, 2.5)],
    }


def same(found: Any, expected: Any) -> bool:
    """Compare two states bit by bit, types included."""
    if type(found) is not type(expected):
        return False
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[k], expected[k]) for k in expected)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, np.ndarray):
        kind = found.dtype == expected.dtype and found.shape == expected.shape
        return kind and found.tobytes() == expected.tobytes()
    return bool(found == expected)
