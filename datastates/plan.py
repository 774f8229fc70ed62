"""Leaves → image: where every byte will lie, decided before any is moved.

Pure functions. Extents of a page or more start at a multiple of 4096, ready for direct I/O;
smaller ones are packed together behind them. The image is then cut into segments: what is copied,
admitted to the arena and handed to a tier at once. A segment is one large extent, or a run of
small ones, so thousands of small tensors are tens of segments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .alias import find_aliases
from .device import Device
from .dtypes import ITEMSIZE
from .grid import CHECKSUM_NBYTES, PAGE, Grid, align, cut
from .manifest import Array
from .names import Path, encode_path
from .provider import ArrayLeaf

__all__ = [
    "EXTENT_NBYTES",
    "Extent",
    "Plan",
    "Segment",
    "data_nbytes",
    "inline_value",
    "make_plan",
]

EXTENT_NBYTES = 32 << 20
"""Largest chunk of a larger array, in bytes, where the arena is large enough."""

_RUN_NBYTES = 8 << 20
_RUN_EXTENTS = 256
_SMALL_ALIGN = 64

_Group = tuple[bool, int]


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
    lazy: bool = False
    """True where all of it may be copied after `save_async` has returned."""


@dataclass(frozen=True, slots=True)
class Plan:
    """An image before its bytes are there."""

    arrays: tuple[Array, ...]
    grids: tuple[Grid, ...]
    """Of the arrays, one each."""
    segments: tuple[Segment, ...]
    nbytes: int
    """Length of the image: what an arena that holds all of it needs."""
    payload: int
    """Bytes of the state's own values, each stored byte counted once."""

    @property
    def chunks(self) -> int:
        """How many extents there are."""
        return sum(len(segment.extents) for segment in self.segments)


def inline_value(leaf: ArrayLeaf) -> bytes | None:
    """Return the bytes of a single element, which lies in the plan itself; None for an array.

    One on a device is treated as an array: to fetch each for itself would be to wait for each.
    """
    if leaf.shape or leaf.device is not None:
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
        inline = None if alias else inline_value(leaf)
        arrays.append(Array(node, leaf.dtype, leaf.shape, chunk, 0, inline, alias))
    return arrays


def _groups(leaves: Sequence[tuple[Path, ArrayLeaf]], lazy: Collection[int]) -> list[_Group]:
    """Return what may not share a segment: what is copied now or later, from a device or not."""
    found: dict[Device | None, int] = {leaf.device: 0 for _, leaf in leaves}
    ranks = {device: rank for rank, device in enumerate(found) if device is not None}
    return [
        (index in lazy, len(found) if leaf.device is None else ranks[leaf.device])
        for index, (_, leaf) in enumerate(leaves)
    ]


def _place(arrays: list[Array], groups: Sequence[_Group]) -> list[Extent]:
    """Give every array its offset, group by group, large extents first; return all in order."""
    extents: list[Extent] = []
    position = small = 0
    group: _Group | None = None
    grids = {i: array.grid for i, array in enumerate(arrays) if array.extents}
    order = {i: (groups[i], _stored(grid) < PAGE) for i, grid in grids.items()}
    for i in sorted(order, key=order.__getitem__):
        grid, stored = grids[i], _stored(grids[i])
        if groups[i] != group:
            group, small = groups[i], 0
        if stored >= PAGE:
            position = align(position)
        else:  # a run of small extents starts on a page, so that segments never share one
            position = align(position, _SMALL_ALIGN if small % _RUN_EXTENTS else PAGE)
            small += 1
        arrays[i] = replace(arrays[i], offset=position)
        for index in range(grid.count):
            extents.append(Extent(i, index, position + index * grid.stride, stored))
        position += data_nbytes(grid)
    return extents


def data_nbytes(grid: Grid) -> int:
    """Return the length of all that an array has in the image.

    Several chunks are followed by the index that makes a Zarr shard of them: two numbers of eight
    bytes for each chunk, and a checksum.
    """
    if grid.count == 1:
        return grid.stride
    return grid.count * (grid.stride + 16) + CHECKSUM_NBYTES


def _stored(grid: Grid) -> int:
    return grid.chunk_nbytes + CHECKSUM_NBYTES


def _segments(
    arrays: Sequence[Array], extents: Sequence[Extent], groups: Sequence[_Group], limit: int
) -> Iterator[Segment]:
    """Cut the image into segments, each from one page to the start of the next."""
    run: list[Extent] = []
    for extent in extents:
        full = run and (
            len(run) >= _RUN_EXTENTS
            or extent.offset + extent.nbytes - run[0].offset > limit
            or groups[extent.array] != groups[run[0].array]
        )
        if full and extent.offset % PAGE == 0:
            yield _segment(run, extent.offset, groups)
            run = []
        run.append(extent)
    if run:
        last = arrays[run[-1].array]
        yield _segment(run, align(last.offset + data_nbytes(last.grid)), groups)


def _segment(run: Sequence[Extent], stop: int, groups: Sequence[_Group]) -> Segment:
    start = run[0].offset
    return Segment(start, stop - start, tuple(run), lazy=groups[run[0].array][0])


def make_plan(
    leaves: Sequence[tuple[Path, ArrayLeaf]], arena_nbytes: int, lazy: Collection[int] = ()
) -> Plan:
    """Plan the image of `leaves` for an arena of `arena_nbytes`; those in `lazy` go last.

    Extents are at most `EXTENT_NBYTES`, and at most a quarter of the arena, so that copying and
    writing overlap even in an arena much smaller than a tensor.
    """
    limit = max(PAGE, min(EXTENT_NBYTES, arena_nbytes // 4 - 2 * PAGE))
    arrays, groups = _describe(leaves, limit), _groups(leaves, lazy)
    extents = _place(arrays, groups)
    segments = tuple(_segments(arrays, extents, groups, min(_RUN_NBYTES, limit)))
    nbytes = segments[-1].offset + segments[-1].nbytes if segments else 0
    payload = sum(array.nbytes for array in arrays if array.alias is None)
    return Plan(tuple(arrays), tuple(a.grid for a in arrays), segments, nbytes, payload)
