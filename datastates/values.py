"""Marker values that a user puts into a state to say what is meant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["RNG", "Pickled"]


@dataclass(frozen=True, slots=True)
class RNG:
    """Stands for the process's random number generators: Python's, numpy's, and torch's.

    Saving captures their states. Restoring into a tree that has an `RNG()` at the same place sets
    them; without a target the states come back as a dict. CUDA generators are included where the
    process has used CUDA. A `torch.Generator`, `random.Random` or `numpy.random.Generator` of your
    own is saved by putting it into the state itself.
    """


@dataclass(frozen=True, slots=True)
class Pickled:
    """A value that is to be pickled because nothing else can store it.

    Reading it back runs code that the file names, so `restore` refuses it unless called with
    `trust=True`; the value itself comes back then, not the wrapper.
    """

    value: Any
