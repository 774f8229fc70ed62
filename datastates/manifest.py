"""What an image contains: the sealed record that makes bytes a checkpoint.

One rank's part of a step is an image (extents at offsets) and this manifest. An extent is one
Zarr chunk: little-endian bytes in C order, zero-padded to full size, and their crc32c. The
manifest is msgpack, of format version `FORMAT`; reading it checks everything that a later step
relies on, so what is in a `Manifest` can be trusted to be consistent with itself, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import msgpack
from msgpack import UnpackException

from .documents import Pieces
from .dtypes import ITEMSIZE
from .errors import FormatError, NewerFormatError, StateError
from .grid import Grid
from .names import is_safe_node
from .provider import Alias
from .tree import MAX_CONTAINERS, Skeleton, pack, unpack

__all__ = [
    "FORMAT",
    "MAX_MANIFEST_NBYTES",
    "Array",
    "Manifest",
    "check_format",
    "check_room",
    "decode",
    "encode",
]

FORMAT = 1
"""Version of the format; a reader refuses a higher one by name."""

MAX_MANIFEST_NBYTES = 32 << 20
"""A longer manifest is refused, at the save and at the restore; as are the next ones."""

MAX_SKELETON_NBYTES = 8 << 20
MAX_ARRAYS = 1 << 18
MAX_EXTENTS = 1 << 18
MAX_CHUNK_NBYTES = 64 << 20
"""Longer than any chunk that is written; what is read before it is verified is bounded."""

_MAX_RECORD_NBYTES = 2 << 20
_MAX_SIZE = 1 << 62


@dataclass(frozen=True, slots=True)
class Array:
    """One array of the image."""

    node: str
    """Zarr node name, relative to the step."""
    dtype: str
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    """Shape of the chunks, each an extent (see `grid.Grid`)."""
    offset: int = 0
    """Where the first extent starts in the image; the others follow at `grid.stride`."""
    inline: bytes | None = None
    """The whole value, where it is one element: no extent then."""
    alias: Alias | None = None
    """The array whose bytes these are: no extent then."""

    @property
    def grid(self) -> Grid:
        """The chunk grid."""
        return Grid(self.shape, self.chunk, ITEMSIZE[self.dtype])

    @property
    def nbytes(self) -> int:
        """Bytes of the value itself."""
        return prod(self.shape) * ITEMSIZE[self.dtype]

    @property
    def extents(self) -> int:
        """How many extents the array has in the image."""
        return 0 if self.inline is not None or self.alias is not None else self.grid.count


@dataclass(frozen=True, slots=True)
class Manifest:
    """One rank's sealed part of a step."""

    arrays: tuple[Array, ...]
    checksums: tuple[tuple[int, ...], ...]
    """The crc32c of each extent's padded bytes, for each array."""
    skeleton: Skeleton
    nbytes: int
    """Length of the image."""
    rank: int = 0
    world_size: int = 1
    packed: bytes | None = field(default=None, compare=False, repr=False)
    """The skeleton as msgpack, where `check_room` has made it already."""

    def aliases(self) -> Iterator[tuple[Array, Array]]:
        """Yield each array that is stored under another name, with that other one."""
        for array in self.arrays:
            if array.alias is not None:
                yield array, self.arrays[array.alias.base]


def encode(manifest: Manifest) -> bytes:
    """Return the manifest as msgpack.

    Raises:
        StateError: it is too long to be read again.
    """
    arrays, chunks = len(manifest.arrays), sum(map(len, manifest.checksums))
    skeleton = manifest.packed or check_room(arrays, chunks, manifest.skeleton)
    records = [
        [
            *(a.node, a.dtype, a.shape, a.chunk, a.offset, a.inline),
            a.alias and [a.alias.base, a.alias.offset, int(a.alias.strided)],
            sums,
        ]
        for a, sums in zip(manifest.arrays, manifest.checksums, strict=True)
    ]
    packed: bytes = msgpack.packb(
        {
            "format": FORMAT,
            "rank": manifest.rank,
            "world_size": manifest.world_size,
            "nbytes": manifest.nbytes,
            "arrays": records,
            "skeleton": skeleton,
        }
    )
    _room("bytes in the manifest", len(packed), MAX_MANIFEST_NBYTES)
    return packed


def _room(what: str, count: int, limit: int) -> None:
    if count > limit:
        raise StateError(
            f"{count} {what}, over {limit}: put many small values into arrays or long lists"
        )


def check_room(arrays: int, chunks: int, skeleton: Skeleton) -> bytes:
    """Refuse what a reader would refuse as too long; return the packed skeleton.

    Raises:
        StateError: the state has too many small values or arrays.
    """
    packed = pack(skeleton)
    _room("bytes in the state without its arrays", len(packed), MAX_SKELETON_NBYTES)
    _room("arrays", arrays, MAX_ARRAYS)
    _room("chunks", chunks, MAX_EXTENTS)
    if len(packed) > MAX_CONTAINERS:  # a container has at least one byte
        try:
            unpack(packed)
        except FormatError as error:
            raise StateError(f"{error}: put many small values into arrays") from error
    return packed


def _sizes(value: Any, what: str, limit: int = _MAX_SIZE) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > 64:
        raise FormatError(f"{what} is not a short list")
    if not all(type(n) is int and 0 <= n < limit for n in value):
        raise FormatError(f"{what} has a number out of range")
    return tuple(value)


def _alias(value: Any, node: str) -> Alias:
    base, offset, strided = _sizes(value, f"{node}: the alias")
    return Alias(base, offset, bool(strided))


def _array(record: Any) -> tuple[Array, tuple[int, ...]]:
    if not isinstance(record, list) or len(record) != 8:
        raise FormatError("an array record does not have eight fields")
    node, dtype, shape, chunk, offset, inline, alias, sums = record
    if not is_safe_node(node):
        raise FormatError(f"{node!r:.100} is no name of ours")
    if dtype not in ITEMSIZE:
        raise FormatError(f"{node}: {dtype!r:.60} is no data type of this format")
    array = Array(
        node,
        dtype,
        _sizes(shape, f"{node}: the shape"),
        _sizes(chunk, f"{node}: the chunk shape"),
        _sizes([offset], f"{node}: the offset")[0],
        inline,
        _alias(alias, node) if alias is not None else None,
    )
    _check_array(array, sums)
    return array, tuple(sums)


def _check_array(array: Array, sums: Any) -> None:
    node = array.node
    if array.nbytes >= _MAX_SIZE or not array.grid.is_contiguous():
        raise FormatError(f"{node}: shape {array.shape} and chunk {array.chunk} do not fit")
    if array.extents and array.grid.chunk_nbytes > MAX_CHUNK_NBYTES:
        raise FormatError(f"{node}: chunks of {array.grid.chunk_nbytes} bytes are not believable")
    if array.inline is not None and (
        not isinstance(array.inline, bytes) or len(array.inline) != array.nbytes
    ):
        raise FormatError(f"{node}: the inline value has the wrong size")
    if not isinstance(sums, list) or len(sums) != array.extents:
        raise FormatError(f"{node}: has {array.extents} extents but not as many checksums")
    if not all(type(n) is int and 0 <= n < 1 << 32 for n in sums):
        raise FormatError(f"{node}: a checksum is out of range")


def _check_aliases(arrays: tuple[Array, ...]) -> None:
    for array in arrays:
        if array.alias is None:
            continue
        base = arrays[array.alias.base] if array.alias.base < len(arrays) else None
        if base is None or base.alias is not None or array.alias.offset > base.nbytes:
            raise FormatError(f"{array.node}: is an alias of nothing")


def _check_arrays(arrays: tuple[Array, ...]) -> None:
    if len({array.node for array in arrays}) != len(arrays):
        raise FormatError("two arrays have one name")
    if sum(array.extents for array in arrays) > MAX_EXTENTS:
        raise FormatError(f"there are over {MAX_EXTENTS} chunks")
    _check_aliases(arrays)


def check_format(value: Any) -> None:
    """Refuse what is no format number, and one that a later version writes.

    Raises:
        FormatError: it is none. NewerFormatError: it is above `FORMAT`.
    """
    if type(value) is not int or value < 1:
        raise FormatError(f"{value!r:.60} is no format number")
    if value > FORMAT:
        raise NewerFormatError(
            f"written in format {value}; this version reads up to {FORMAT}: upgrade"
        )


def _fields(pieces: Pieces) -> dict[str, Any]:
    """Take the fields apart, the arrays one by one."""
    found: dict[str, Any] = {}
    for _ in pieces.pairs(16):
        name = pieces.scalar(64)
        if name == "arrays":
            items = pieces.items(MAX_ARRAYS)
            found[name] = [_array(pieces.record(_MAX_RECORD_NBYTES)) for _ in items]
        else:
            found[name] = pieces.scalar(MAX_SKELETON_NBYTES + 5)
        if name == "format":
            check_format(found[name])
    pieces.end()
    return found


def decode(packed: bytes | memoryview) -> Manifest:
    """Read a manifest that may come from anyone.

    Raises:
        FormatError: it is malformed, inconsistent, or of a newer format.
    """
    try:
        top = _fields(Pieces(packed))
        check_format(top.get("format"))
        arrays = tuple(array for array, _ in top["arrays"])
        _check_arrays(arrays)
        rank, world_size, nbytes = _sizes(
            [top[k] for k in ("rank", "world_size", "nbytes")], "head"
        )
        sums = tuple(sums for _, sums in top["arrays"])
        return Manifest(arrays, sums, unpack(top["skeleton"]), nbytes, rank, world_size)
    except FormatError:
        raise
    except (LookupError, TypeError, ValueError, RecursionError, UnpackException) as error:
        raise FormatError(f"the manifest cannot be read: {error!r:.200}") from error
