"""Leaves → image: where every byte will lie, decided before any is moved.

Pure functions. Extents of a page or more start at a multiple of 4096, ready for direct I/O;
smaller ones are packed together behind them. The image is then cut into segments: what is copied,
admitted to the arena and handed to a tier at once. A segment is one large extent, or a run of
small ones, so thousands of small tensors are tens of segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .alias import find_aliases
from .dtypes import ITEMSIZE
from .grid import CHECKSUM_NBYTES, PAGE, align, cut
from .manifest import Array
from .names import Path, encode_path
from .provider import ArrayLeaf

__all__ = ["EXTENT_NBYTES", "Extent", "Plan", "Segment", "make_plan"]

EXTENT_NBYTES = 32 << 20
"""Largest chunk of a larger array, in bytes, where the arena is large enough."""

_RUN_NBYTES = 8 << 20
_RUN_EXTENTS = 256
_SMALL_ALIGN = 64


@dataclass(frozen=True, slots=True)
class Extent:
    """One chunk of one array, as it lies in the image."""

    array: int
    """Index of the array."""
    index: int
    """Which chunk of it, in C order of its grid."""
    offset: int
    """First byte in the image."""
    nbytes: int
    """Bytes of the chunk with padding and checksum."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of the image that moves in one piece."""

    offset: int
    """First byte in the image, a multiple of 4096."""
    nbytes: int
    """Length, a multiple of 4096."""
    extents: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """An image before its bytes are there."""

    arrays: tuple[Array, ...]
    segments: tuple[Segment, ...]
    nbytes: int
    """Length of the image: what an arena that holds all of it needs."""
    payload: int
    """Bytes of the state's own values, each stored byte counted once."""


def _inline(leaf: ArrayLeaf) -> bytes | None:
    if leaf.shape:
        return None
    value = np.empty(ITEMSIZE[leaf.dtype], np.uint8)
    leaf.source.read(0, value)
    return value.tobytes()


def _unique(nodes: Sequence[str]) -> list[str]:
    """Give names that would collide (shortened, or keys that look alike) a number each."""
    seen: set[str] = set()
    parts = {node.partition("/")[0] for node in nodes if "/" in node}
    result = []
    for node in nodes:
        name, n = node, 1
        while name in seen or name in parts:
            n += 1
            name = f"{node[:240]}~~{n}"
        seen.add(name)
        result.append(name)
    return result


def _describe(leaves: Sequence[tuple[Path, ArrayLeaf]], limit: int) -> list[Array]:
    aliases = find_aliases([leaf for _, leaf in leaves])
    nodes = _unique([encode_path(path) for path, _ in leaves])
    arrays = []
    for index, (node, (_, leaf)) in enumerate(zip(nodes, leaves, strict=True)):
        chunk = cut(leaf.shape, ITEMSIZE[leaf.dtype], limit).chunk
        alias = aliases.get(index)
        inline = None if alias else _inline(leaf)
        arrays.append(Array(node, leaf.dtype, leaf.shape, chunk, 0, inline, alias))
    return arrays


def _place(arrays: list[Array]) -> list[Extent]:
    """Give every array its offset, large extents first, and return all extents in order."""
    extents: list[Extent] = []
    position = small = 0
    grids = {i: array.grid for i, array in enumerate(arrays) if array.extents}
    for i in sorted(grids, key=lambda i: grids[i].chunk_nbytes + CHECKSUM_NBYTES < PAGE):
        grid, stored = grids[i], grids[i].chunk_nbytes + CHECKSUM_NBYTES
        if stored >= PAGE:
            position = align(position)
        else:  # a run of small extents starts on a page, so that segments never share one
            position = align(position, _SMALL_ALIGN if small % _RUN_EXTENTS else PAGE)
            small += 1
        arrays[i] = replace(arrays[i], offset=position)
        for index in range(grid.count):
            extents.append(Extent(i, index, position + index * grid.stride, stored))
        position = extents[-1].offset + stored
    return extents


def _segments(extents: list[Extent], limit: int) -> list[Segment]:
    segments: list[Segment] = []
    run: list[Extent] = []
    for extent in extents:
        full = run and (
            len(run) >= _RUN_EXTENTS or extent.offset + extent.nbytes - run[0].offset > limit
        )
        if full and extent.offset % PAGE == 0:
            segments.append(_segment(run))
            run = []
        run.append(extent)
    return [*segments, _segment(run)] if run else segments


def _segment(run: list[Extent]) -> Segment:
    start = run[0].offset
    stop = align(run[-1].offset + run[-1].nbytes)
    return Segment(start, stop - start, tuple(run))


def make_plan(leaves: Sequence[tuple[Path, ArrayLeaf]], arena_nbytes: int) -> Plan:
    """Plan the image of `leaves` for an arena of `arena_nbytes`.

    Extents are at most `EXTENT_NBYTES`, and at most a quarter of the arena, so that copying and
    writing overlap even in an arena much smaller than a tensor.
    """
    limit = max(PAGE, min(EXTENT_NBYTES, arena_nbytes // 4 - 2 * PAGE))
    arrays = _describe(leaves, limit)
    extents = _place(arrays)
    segments = _segments(extents, min(_RUN_NBYTES, limit))
    nbytes = segments[-1].offset + segments[-1].nbytes if segments else 0
    payload = sum(array.nbytes for array in arrays if array.alias is None)
    return Plan(tuple(arrays), tuple(segments), nbytes, payload)
