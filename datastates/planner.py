"""Planning, once for all saves of the same structure.

A training run saves the same tensors again and again; what changes is their content, and the few
values that lie in the plan itself. So the last plan is kept with what it was made from, compared
with what comes, and made anew where anything differs: a path, a dtype, a shape, what shares
memory with what, what is lazy, or the arena.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .alias import find_aliases
from .names import Path
from .plan import Plan, inline_value, make_plan
from .provider import Alias, ArrayLeaf, Memory

__all__ = ["Planner"]

_Leaves = Sequence[tuple[Path, ArrayLeaf]]


@dataclass(frozen=True, slots=True)
class _Made:
    """A plan, and what it was made from."""

    structure: tuple[Any, ...]
    memories: list[Memory | None]
    aliases: dict[int, Alias]
    plan: Plan


class Planner:
    """Makes plans and remembers the last. Not for several threads at once."""

    def __init__(self) -> None:
        self._last: _Made | None = None

    def plan(self, leaves: _Leaves, arena_nbytes: int, lazy: Collection[int] = ()) -> Plan:
        """Return what `make_plan` would."""
        structure = (
            [path for path, _ in leaves],
            [leaf.dtype for _, leaf in leaves],
            [leaf.shape for _, leaf in leaves],
            [leaf.device for _, leaf in leaves],
            (arena_nbytes, frozenset(lazy)),
        )
        memories = [leaf.memory for _, leaf in leaves]
        last = self._last
        if (
            last is not None
            and last.structure == structure
            and _shares_alike(last, leaves, memories)
        ):
            self._last = replace(last, memories=memories)
            return _with_values(last.plan, leaves)
        plan = make_plan(leaves, arena_nbytes, lazy)
        aliases = {i: a.alias for i, a in enumerate(plan.arrays) if a.alias is not None}
        self._last = _Made(structure, memories, aliases, plan)
        return plan


def _shares_alike(last: _Made, leaves: _Leaves, memories: list[Memory | None]) -> bool:
    """Tell whether the same leaves share memory; cheap where all of it is where it was."""
    return last.memories == memories or find_aliases([leaf for _, leaf in leaves]) == last.aliases


def _with_values(plan: Plan, leaves: _Leaves) -> Plan:
    """Return the plan with the values of now in it."""
    arrays = list(plan.arrays)
    for index, array in enumerate(plan.arrays):
        if array.inline is not None:
            value = inline_value(leaves[index][1])
            if value != array.inline:
                arrays[index] = replace(array, inline=value)
    return replace(plan, arrays=tuple(arrays))
