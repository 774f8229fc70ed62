"""Random number generators: the process's own (`RNG`), and those of the user."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from datastates.errors import FormatError
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
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch = _torch()
    if torch is not None and "torch" in states:
        torch.set_rng_state(states["torch"])
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(states["cuda"])


def _numpy_generator(states: Any) -> np.random.Generator:
    kind = states["bit_generator"]
    if kind not in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"):
        raise ValueError(f"no bit generator is called {kind!r}")
    return np.random.Generator(getattr(np.random, kind)())


def _set_numpy(generator: np.random.Generator, state: Any) -> None:
    generator.bit_generator.state = state


class RNGProvider(Provider):
    """Takes `RNG()`, `random.Random`, `numpy.random.Generator` and `torch.Generator`."""

    name = "rng"
    priority = -20
    in_place = True

    def claims(self, kind: type) -> bool:
        """Exact types: a subclass may have a state of its own."""
        torch = _torch()
        known = (RNG, random.Random, np.random.Generator)
        return kind in known or (torch is not None and kind is torch.Generator)

    def split(self, value: Any, saver: Saver) -> Any:
        """See `Provider.split`."""
        if isinstance(value, RNG):
            return {"kind": "all", "state": saver.child(_capture())}
        if isinstance(value, random.Random):
            return {"kind": "python", "state": saver.child(value.getstate())}
        if isinstance(value, np.random.Generator):
            return {"kind": "numpy", "state": saver.child(value.bit_generator.state)}
        return {
            "kind": "torch",
            "device": str(value.device),
            "state": saver.child(value.get_state()),
        }

    def join(self, data: Any, target: Any, loader: Loader) -> Finish:
        """See `Provider.join`. Without a target, `RNG()` comes back as a dict of states."""
        kind = data["kind"]
        wanted = {"all": RNG, "python": random.Random, "numpy": np.random.Generator}.get(kind)
        if kind == "torch":
            import torch

            wanted = torch.Generator
        if wanted is None:
            raise loader.error(FormatError, f"no generator is called {kind!r}")
        if target is not None and not isinstance(target, wanted):
            loader.mismatch(f"{type(target).__name__} here, {wanted.__name__} stored")
            return lambda: target
        state = loader.child(data["state"], None)
        return lambda: self._finish(kind, target, state(), loader)

    def _finish(self, kind: str, target: Any, state: Any, loader: Loader) -> Any:
        try:
            if kind == "all":
                if target is None:
                    return state
                _apply(state)
                return target
            generator = target if target is not None else _NEW[kind](state)
            _SET[kind](generator, state)
            return generator
        except (TypeError, ValueError, LookupError, RuntimeError) as error:
            raise loader.error(FormatError, f"its generator state is refused: {error}") from error


def _new_torch(state: Any) -> Any:
    import torch

    return torch.Generator()


_NEW: dict[str, Callable[[Any], Any]] = {
    "python": lambda state: random.Random(),
    "numpy": _numpy_generator,
    "torch": _new_torch,
}
_SET: dict[str, Callable[[Any, Any], None]] = {
    "python": lambda generator, state: generator.setstate(state),
    "numpy": _set_numpy,
    "torch": lambda generator, state: generator.set_state(state),
}
