"""Anything with `state_dict` and `load_state_dict`: modules, optimizers, schedulers, loaders.

A module's keys are compared with the checkpoint's. For all else the stored structure wins: an
optimizer that has not stepped yet has no state, and takes the stored one. Memory that the object
already has (parameters, moments) is filled in place either way, and `load_state_dict` is then
called with it, so hooks, versions and whatever is not a tensor are the object's own business.
"""

from __future__ import annotations

import sys
from typing import Any

from datastates.errors import MismatchError
from datastates.provider import Finish, Loader, Provider, Saver


def _is_module(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _refused(target: object, error: Exception, loader: Loader) -> Exception:
    reason = f"{type(target).__name__} refuses: {type(error).__name__}: {error}"
    return loader.error(MismatchError, reason)


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
        return {"state": saver.child(value.state_dict())}

    def join(self, data: Any, target: Any, loader: Loader) -> Finish:
        """See `Provider.join`. Without a target the state dict itself comes back."""
        if target is None:
            return loader.child(data["state"], None)
        if not self.claims(type(target)):
            loader.mismatch(f"{type(target).__name__} here, an object with a state dict stored")
            return lambda: target
        module = _is_module(target)
        try:
            current = target.state_dict()
        except Exception as error:  # whatever the object raises
            raise _refused(target, error, loader) from error
        state = loader.child(data["state"], current, adopt=not module)

        def finish() -> Any:
            loaded = state()
            try:
                if module:
                    target.load_state_dict(loaded, strict=False)  # compared before, key by key
                else:
                    target.load_state_dict(loaded)
            except Exception as error:  # whatever the object raises
                raise _refused(target, error, loader) from error
            return target

        return finish
