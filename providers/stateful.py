"""Anything with `state_dict` and `load_state_dict`: modules, optimizers, schedulers, loaders.

A module's keys are compared with the checkpoint's. For all else the stored structure wins: an
optimizer that has not stepped yet has no state, and takes the stored one. Memory that the object
already has (parameters, moments) is filled in place either way, and `load_state_dict` is then
called with it, so hooks, versions and whatever is not a tensor are the object's own business.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from datastates.provider import Finish, Loader, Provider, Saver


def _is_module(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


class StatefulProvider(Provider):
    """Takes objects with `state_dict()` and `load_state_dict()`."""

    name = "stateful"
    priority = -30
    in_place = True

    def claims(self, kind: type) -> bool:
        """By the two methods; a class of tensors is none."""
        return callable(getattr(kind, "state_dict", None)) and callable(
            getattr(kind, "load_state_dict", None)
        )

    def split(self, value: Any, saver: Saver) -> Any:
        """See `Provider.split`."""
        state = value.state_dict()
        ordered = type(state) is OrderedDict
        metadata = getattr(state, "_metadata", None)
        return {
            "state": saver.child(dict(state) if ordered else state),
            "ordered": ordered,
            "metadata": saver.child(metadata) if metadata is not None else None,
        }

    def join(self, data: Any, target: Any, loader: Loader) -> Finish:
        """See `Provider.join`. Without a target the state dict itself comes back."""
        ordered, metadata = data["ordered"], loader.child(data["metadata"], None)
        if target is None:
            state = loader.child(data["state"], None)
            return lambda: _state_dict(state(), ordered, metadata())
        if not self.claims(type(target)):
            loader.mismatch(f"{type(target).__name__} here, an object with a state dict stored")
            return lambda: target
        current = target.state_dict()
        if isinstance(current, Mapping):
            current = dict(current)
        module = _is_module(target)
        state = loader.child(data["state"], current, adopt=not module)

        def finish() -> Any:
            loaded = _state_dict(state(), ordered, metadata())
            if module:
                target.load_state_dict(loaded, strict=False)  # compared before, key by key
            else:
                target.load_state_dict(loaded)
            return target

        return finish


def _state_dict(state: Any, ordered: bool, metadata: Any) -> Any:
    if not ordered:
        return state
    made = OrderedDict(state)
    if metadata is not None:
        made._metadata = metadata  # type: ignore[attr-defined]
    return made
