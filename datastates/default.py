"""One checkpointer for the whole process, for code that has no place to keep its own."""

from __future__ import annotations

import os
from typing import Any

from .checkpointer import Checkpointer
from .errors import UsageError
from .save import Save
from .tier import Tier

__all__ = ["configure", "restore", "save_async"]

_default: list[Checkpointer] = []


def configure(location: str | os.PathLike[str] | Tier, **options: Any) -> Checkpointer:
    """Make the default checkpointer; an earlier one is closed first. Arguments as `Checkpointer`.

    Raises:
        UsageError: an argument is wrong; the earlier one stays.
        SaveError: the earlier one had lost a save that nobody was told of; the new one is set.
    """
    made = Checkpointer(location, **options)
    earlier, _default[:] = list(_default), [made]
    for checkpointer in earlier:
        checkpointer.close()
    return made


def _get() -> Checkpointer:
    if not _default:
        raise UsageError('say where checkpoints go first: datastates.configure("runs/name")')
    return _default[0]


def save_async(state: object, **options: Any) -> Save:
    """`Checkpointer.save_async` of the default checkpointer."""
    return _get().save_async(state, **options)


def restore(into: Any = None, **options: Any) -> Any:
    """`Checkpointer.restore` of the default checkpointer."""
    return _get().restore(into, **options)
