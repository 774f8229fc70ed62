"""Which leaves may be copied after `save_async` has returned, and the fence that makes it safe.

A tensor is lazy only if somebody has promised when it changes: it is a parameter or the state of
an optimizer under guard, which fences before each of its steps, or the caller has vouched for the
part of the state that it lies in, and fences by hand. What an optimizer holds is looked up at each
save, so parameters that were swapped, added or moved are seen as they are.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

from .errors import UsageError
from .names import Path, encode_path
from .provider import ArrayLeaf

__all__ = ["Guard", "Optimizer"]

MIN_LAZY_NBYTES = 64 << 10
"""What is smaller is copied at once: that costs less than to watch it."""


class Optimizer(Protocol):
    """What is asked of an optimizer; those of `torch.optim` have it."""

    param_groups: Any
    """Dicts, each with the tensors it updates under `params`."""
    state: Any
    """Its own tensors, in dicts, by parameter."""

    def register_step_pre_hook(self, hook: Callable[..., None]) -> Any:
        """Call `hook` before each step, until `remove` of what is returned is called."""


class Guard:
    """The optimizers whose steps are fenced, and who was caught not keeping a promise."""

    def __init__(self) -> None:
        self._optimizers: list[weakref.ref[Any]] = []
        self._hooks: list[Any] = []
        self._distrusted: set[str] = set()

    def add(self, optimizer: Optimizer, fence: Callable[[], None]) -> None:
        """Fence before each step of `optimizer`; a second time changes nothing.

        Raises:
            UsageError: it is no such optimizer.
        """
        wanted = ("param_groups", "state", "register_step_pre_hook")
        missing = [name for name in wanted if not hasattr(optimizer, name)]
        if missing:
            raise UsageError(
                f"guard() takes optimizers; a {type(optimizer).__name__} has no {missing[0]}: "
                "make its parts lazy by save_async(lazy=...), and call fence() before it updates"
            )
        if any(ref() is optimizer for ref in self._optimizers):
            return
        self._hooks.append(optimizer.register_step_pre_hook(lambda *_: fence()))
        self._optimizers.append(weakref.ref(optimizer))

    def distrust(self, name: str) -> None:
        """Copy the part that the array of this name is in at once from now on.

        It was caught changing, so somebody breaks the promise; and samples do not catch everything.
        """
        self._distrusted.add(name.partition("/")[0])

    def lazy(
        self, leaves: Sequence[tuple[Path, ArrayLeaf]], vouched: Sequence[Path] = ()
    ) -> frozenset[int]:
        """Return which leaves may be copied later: promised, watched, and worth it."""
        guarded = dict(self._memory())
        if not guarded and not vouched:
            return frozenset()
        return frozenset(
            i
            for i, (path, leaf) in enumerate(leaves)
            if leaf.watch is not None
            and leaf.memory is not None
            and leaf.memory.stop - leaf.memory.start >= MIN_LAZY_NBYTES
            and (
                leaf.memory.stop <= guarded.get(leaf.memory.start, 0)
                or any(path[: len(part)] == part for part in vouched)
            )
            and not (self._distrusted and self._is_distrusted(path))
        )

    def _is_distrusted(self, path: Path) -> bool:
        return encode_path(path).partition("/")[0] in self._distrusted

    def _memory(self) -> Iterator[tuple[int, int]]:
        """Yield first and last address of all that the guarded optimizers change."""
        for ref in self._optimizers:
            optimizer = ref()
            if optimizer is not None:
                held = (group["params"] for group in optimizer.param_groups)
                for tensor in _tensors([*held, *optimizer.state.values()]):
                    with suppress(RuntimeError):  # sparse tensors and wrappers have no address
                        start = tensor.data_ptr()
                        yield start, start + tensor.numel() * tensor.element_size()

    def close(self) -> None:
        """Take the hooks back."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._optimizers.clear()


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if hasattr(value, "data_ptr"):
            yield value
        elif isinstance(value, dict):
            yield from _tensors(value.values())
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
