"""Random number generators: the process's own (`RNG`), and those of the user."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from datastates.errors import FormatError, MismatchError
from datastates.provider import Finish, Loader, Provider, Saver
from datastates.values import RNG


def _torch() -> Any:
    return sys.modules.get("torch")


def _capture() -> dict[str, Any]:
    states: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state()}
    torch = _torch()
    if torch is not None:
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def _apply(states: dict[str, Any]) -> None:
    numpy = _checked(states["numpy"])
    random.setstate(states["python"])
    np.random.set_state(numpy)
    torch = _torch()
    if torch is not None and "torch" in states:
        torch.set_rng_state(states["torch"])
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(states["cuda"])


def _checked(bits: Any) -> Any:
    """Return the state of one of numpy's bit generators, a dict or its older tuple, if it is safe.

    Numpy takes any position in its buffers, and reads beyond them then.
    """
    kind = bits["bit_generator"] if isinstance(bits, dict) else bits[0]
    if kind == "MT19937":
        position, limit = bits["state"]["pos"] if isinstance(bits, dict) else bits[2], 624
    else:
        position, limit = bits["buffer_pos"] if kind == "Philox" else 0, 4
    if not 0 <= int(position) <= limit:
        raise ValueError(f"{kind} has no position {position}")
    return bits


def _numpy_bits(kind: Any) -> np.random.BitGenerator:
    if kind not in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"):
        raise ValueError(f"no bit generator is called {kind!r}")
    made: np.random.BitGenerator = getattr(np.random, kind)()
    return made


def _numpy_state(generator: np.random.Generator) -> dict[str, Any]:
    """Return the state, and the seeds that `spawn` makes children from."""
    bits = generator.bit_generator
    seeds: Any = bits.seed_seq
    known = type(seeds) is np.random.SeedSequence
    return {"bits": bits.state, "seeds": _seeds(seeds.state) if known else None}


def _seeds(state: Any) -> Any:
    """Return a seed sequence's state if hashing it takes no time worth mentioning."""
    given = [state[name] for name in ("entropy", "spawn_key") if state[name] is not None]
    numbers = [int(n) for value in given for n in np.asarray(value, object).ravel()]
    if state["pool_size"] > 1024 or sum(n.bit_length() for n in numbers) > _MAX_SEED_BITS:
        raise ValueError("the seeds are too large")
    return state


def _set_numpy(generator: np.random.Generator, state: Any) -> None:
    bits: Any = generator.bit_generator
    bits.state = _checked(state["bits"])
    if state["seeds"] is not None:
        seeds = np.random.SeedSequence(**_seeds(state["seeds"]))
        bits.__setstate__((state["bits"], seeds))


_MAX_SEED_BITS = 1 << 18


class RNGProvider(Provider):
    """Takes `RNG()`, and the generators of `random`, `numpy.random` and `torch`."""

    name = "rng"
    priority = -20
    in_place = True

    def claims(self, kind: type) -> bool:
        """Exact types: a subclass may have a state of its own."""
        torch = _torch()
        known = (RNG, *_KINDS.values())
        return kind in known or (torch is not None and kind is torch.Generator)

    def split(self, value: Any, saver: Saver) -> Any:
        """See `Provider.split`."""
        if isinstance(value, RNG):
            return {"kind": "all", "state": saver.child(_capture())}
        if isinstance(value, random.Random):
            return {"kind": "python", "state": saver.child(value.getstate())}
        if isinstance(value, np.random.Generator):
            return {"kind": "numpy", "state": saver.child(self._numpy(value, saver))}
        if isinstance(value, np.random.RandomState):
            return {"kind": "numpy_legacy", "state": saver.child(value.get_state(legacy=False))}
        return {
            "kind": "torch",
            "device": str(value.device),
            "state": saver.child(value.get_state()),
        }

    def _numpy(self, value: np.random.Generator, saver: Saver) -> Any:
        try:
            return _numpy_state(value)
        except ValueError as error:
            raise saver.refuse(str(error)) from error

    def join(self, data: Any, target: Any, loader: Loader) -> Finish:
        """See `Provider.join`. Without a target, `RNG()` comes back as a dict of states."""
        kind = data["kind"]
        wanted = _KINDS.get(kind, RNG if kind == "all" else None)
        if kind == "torch":
            import torch

            wanted = torch.Generator
        if wanted is None:
            raise loader.error(FormatError, f"no generator is called {kind!r}")
        if target is not None and not isinstance(target, wanted):
            loader.mismatch(f"{type(target).__name__} here, {wanted.__name__} stored")
            return lambda: target
        state = loader.child(data["state"], None)
        return lambda: self._finish(data, target, state(), loader)

    def _finish(self, data: Any, target: Any, state: Any, loader: Loader) -> Any:
        kind = data["kind"]
        try:
            if kind == "all":
                if target is None:
                    return state
                _apply(state)
                return target
            generator = target if target is not None else _NEW[kind](state, data)
            _SET[kind](generator, state)
            return generator
        except (TypeError, ValueError, LookupError, RuntimeError) as error:
            raise loader.error(MismatchError, f"its generator state is refused: {error}") from error


def _new_torch(state: Any, data: Any) -> Any:
    import torch

    return torch.Generator(data["device"])


_KINDS: dict[str, type] = {
    "python": random.Random,
    "numpy": np.random.Generator,
    "numpy_legacy": np.random.RandomState,
}
_NEW: dict[str, Callable[[Any, Any], Any]] = {
    "python": lambda state, data: random.Random(),
    "numpy": lambda state, data: np.random.Generator(_numpy_bits(state["bits"]["bit_generator"])),
    "numpy_legacy": lambda state, data: np.random.RandomState(_numpy_bits(state["bit_generator"])),
    "torch": _new_torch,
}
_SET: dict[str, Callable[[Any, Any], None]] = {
    "python": lambda generator, state: generator.setstate(state),
    "numpy": _set_numpy,
    "numpy_legacy": lambda generator, state: generator.set_state(_checked(state)),
    "torch": lambda generator, state: generator.set_state(state),
}
