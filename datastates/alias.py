"""Which leaves share memory with which: found by address, once per save.

Equal addresses of *storages* say nothing (views of one storage may be apart; empty and meta
tensors all have address 0). So the test is physical: the bytes a leaf occupies. A leaf that lies
within another one whose elements fill their memory in C order, with the same element size and
grid, is a view of it and has nothing of its own to store. Slices that touch do not overlap;
leaves that overlap in part are stored each for itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from .dtypes import ITEMSIZE
from .provider import Alias, ArrayLeaf, Memory
from .sources import is_c_order

__all__ = ["find_aliases"]


def _in_c_order(leaf: ArrayLeaf, memory: Memory) -> bool:
    return memory.dense and is_c_order(leaf.shape, memory.strides)


def find_aliases(leaves: Sequence[ArrayLeaf]) -> dict[int, Alias]:
    """Return for each leaf that shares another one's memory which one, and where in it."""
    groups: dict[tuple[str, str], list[tuple[int, int, bool, int, Memory]]] = {}
    for index, leaf in enumerate(leaves):
        memory = leaf.memory
        if memory is not None and memory.stop > memory.start:
            entry = (memory.start, -memory.stop, not _in_c_order(leaf, memory), index, memory)
            groups.setdefault((memory.space, leaf.dtype), []).append(entry)
    aliases: dict[int, Alias] = {}
    for (_, dtype), group in groups.items():
        _sweep(sorted(group, key=lambda e: e[:4]), leaves, ITEMSIZE[dtype], aliases)
    return aliases


def _sweep(
    group: list[tuple[int, int, bool, int, Memory]],
    leaves: Sequence[ArrayLeaf],
    itemsize: int,
    aliases: dict[int, Alias],
) -> None:
    """Walk one address space upwards; `base` is the C-ordered leaf that reaches furthest."""
    base: tuple[int, Memory] | None = None
    exact: dict[tuple[object, ...], int] = {}
    for start, _, strided, index, memory in group:
        key = (start, memory.stop, leaves[index].shape, memory.strides)
        if base is not None and memory.stop <= base[1].stop:
            offset = start - base[1].start
            if offset % itemsize == 0:
                aliases[index] = Alias(base[0], offset)
                continue
        if not strided:
            base = (index, memory)
        elif key in exact:
            aliases[index] = Alias(exact[key], 0, strided=True)
        else:
            exact[key] = index
