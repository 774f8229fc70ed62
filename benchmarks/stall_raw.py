"""What the machine can do by itself, as the yardstick of the stall benchmark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
import rawdisk


class Yardstick:
    """The machine's own rates, in bytes a second."""

    def __init__(self, path: Path, nbytes: int) -> None:
        self._path, self._memory = path, rawdisk.memory(nbytes)

    def measure(self) -> dict[str, float]:
        half = len(self._memory) // 2
        source, target = (np.frombuffer(self._memory[at : at + half], np.uint8) for at in (0, half))
        moves = (
            ("write", 2 * half, 1, lambda: rawdisk.write(self._path, self._memory)),
            ("read", 2 * half, 1, lambda: rawdisk.read(self._path, self._memory)),
            ("memcpy", half, 3, lambda: np.copyto(target, source)),
        )
        found = {name: size / _shortest_s(move, times) for name, size, times, move in moves}
        self._path.unlink()
        return found


def _shortest_s(move: Callable[[], object], times: int) -> float:
    def once() -> float:
        start = perf_counter()
        move()
        return perf_counter() - start

    return min(once() for _ in range(times))
