"""The Zarr documents of a step: validated and written down by zarr-python's own classes.

An array of one chunk is a plain Zarr array; one of several is one Zarr shard that holds them all,
with the index at its end. Either way it is one file, `c.0.0` below the array's directory, and its
chunks end in the crc32c that Zarr's codec checks. An array of one element needs no file: its value
is the fill value, written so that every bit of it comes back. In the layout `packed` the files are
ranges of one, byte for byte the same.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from crc32c import crc32c
from zarr.core.group import GroupMetadata
from zarr.core.metadata.v3 import ArrayV3Metadata

from datastates import zarr_dtypes
from datastates.checks import MAX_METADATA_DEPTH, nests_deeper
from datastates.dtypes import is_core, numpy_dtype
from datastates.grid import Grid
from datastates.manifest import FORMAT, Array, check_format
from datastates.tier import Record

RESERVED = ".datastates"
"""The group of what belongs to us rather than to the state; no state name starts with a dot."""

TREE, PACKED = "tree", "packed"
"""The layouts: a file for each array, or one for all."""

MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What `read_record` raises where a document is none."""

MAX_RECORD_NBYTES = 8 << 20
"""A longer commit record, which is the root document, is neither written nor read."""

MAX_CONSOLIDATED_NBYTES = 4 << 20
"""Longer consolidated metadata is left out: readers then open each node by itself."""

_MAX_ALIASES = 1024

Document = dict[str, Any]

_CODECS = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]


def is_sharded(grid: Grid) -> bool:
    """Tell whether the array's chunks lie in one Zarr shard rather than being one plain chunk."""
    return grid.count > 1


def chunk_key(array: Array) -> str:
    """Return the name of the array's one data file."""
    return ".".join(["c", *("0" for _ in array.shape)])


def shard_index(grid: Grid) -> bytes:
    """Return the index at the end of a shard: offset and length of each chunk, and a crc32c.

    It starts where one more chunk would (see `plan.data_nbytes`).
    """
    stored = grid.chunk_nbytes + 4
    index = b"".join(struct.pack("<QQ", i * grid.stride, stored) for i in range(grid.count))
    return index + struct.pack("<I", crc32c(index))


def _float(value: Any, bits: np.ndarray[Any, Any]) -> float | str:
    number = float(value)
    if np.isnan(number):
        plain = np.array(np.nan, value.dtype).tobytes() == bits.tobytes()
        return "NaN" if plain else "0x" + bits.tobytes()[::-1].hex()
    if np.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return number


def fill_value(dtype: str, inline: bytes | None) -> Any:
    """Return the JSON of a fill value with exactly these bytes; zero where there are none."""
    kind = numpy_dtype(dtype)
    if dtype == "float8_e8m0fnu":  # TensorStore 0.1.86 misreads its numbers; bits are safe
        return "0x" + (inline or b"\0").hex()
    if inline is None:
        return [0.0, 0.0] if kind.kind == "c" else kind.type(0).item()
    value = np.frombuffer(inline, kind)
    if kind.kind == "c":
        parts = value.view(value.real.dtype)
        return [_float(p, parts[i : i + 1]) for i, p in enumerate(parts)]
    if kind.kind in "biu":
        return value[0].item()
    return _float(value[0], value)


@lru_cache(maxsize=4096)
def _document(
    dtype: str, shape: tuple[int, ...], chunk: tuple[int, ...], inline: bytes | None
) -> Document:
    if not is_core(dtype):
        zarr_dtypes.register()
    grid = Grid(shape, chunk, numpy_dtype(dtype).itemsize)
    codecs: list[Any] = _CODECS
    outer = chunk
    if is_sharded(grid):
        configuration = {
            "chunk_shape": chunk,
            "codecs": _CODECS,
            "index_codecs": _CODECS,
            "index_location": "end",
        }
        codecs = [{"name": "sharding_indexed", "configuration": configuration}]
        outer = grid.outer
    fill = fill_value(dtype, inline)
    given = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": outer}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": fill,
        "codecs": codecs,
        "attributes": {},
    }
    made: Document = json.loads(json.dumps(ArrayV3Metadata.from_dict(given).to_dict()))
    return made | {"fill_value": fill}


def array_document(array: Array) -> Document:
    """Return the `zarr.json` of an array; shared between equal ones, so not to be changed."""
    return _document(array.dtype, array.shape, array.chunk, array.inline)


def is_described(array: Array, document: Any) -> bool:
    """Tell whether a document, as found, says what a reader needs to find these values."""
    keys = ("shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs")
    right = array_document(array)
    return isinstance(document, dict) and all(document.get(k) == right[k] for k in keys)


def group_document(attributes: Mapping[str, Any]) -> Document:
    """Return the `zarr.json` of a group."""
    made: Document = GroupMetadata(attributes=dict(attributes), zarr_format=3).to_dict()
    return made


def to_json(document: Document) -> bytes:
    """Return a document as it lies on disk; strict JSON, so any reader takes it."""
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()


def _finite(value: float) -> float | str:
    if np.isnan(value):
        return "NaN"
    return value if np.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


def attributes(record: Record, arrays: Sequence[Array], layout: str) -> Document:
    """Return the attributes of a step's root group: what its commit record says."""
    aliases = {a.node: arrays[a.alias.base].node for a in arrays if a.alias is not None}
    if len(aliases) > _MAX_ALIASES:
        aliases = {}  # for people only, who would not read so many; the manifest has them
    return {
        "step": record.step,
        "metrics": {name: _finite(value) for name, value in record.metrics.items()},
        "metadata": dict(record.metadata),
        "datastates": {
            "format": FORMAT,
            "layout": layout,
            "world_size": 1,
            "nbytes": record.nbytes,
            "created": record.created,
            "aliases": aliases,
        },
    }


def consolidated(nodes: Mapping[str, Document], arrays: Sequence[Array]) -> Document | None:
    """Return consolidated metadata of all nodes, or None where it would do harm.

    One data type that a reader does not know makes it refuse the whole consolidated group, so
    there is none where a type is beyond Zarr's core.
    """
    if not all(is_core(array.dtype) for array in arrays):
        return None
    made = {"kind": "inline", "must_understand": False, "metadata": dict(nodes)}
    return made if len(to_json(made)) <= MAX_CONSOLIDATED_NBYTES else None


def read_record(step: int, document: Any) -> Record:
    """Return the commit record out of a root document.

    Raises:
        LookupError, TypeError, ValueError, ArithmeticError, AttributeError: it is none of ours.
        NewerFormatError: a later version wrote it.
    """
    found = document["attributes"]
    ours, metadata = found["datastates"], found["metadata"]
    check_format(ours["format"])
    if found["step"] != step:
        raise ValueError(f"it is the record of step {found['step']}")
    if not isinstance(metadata, dict) or nests_deeper(metadata, MAX_METADATA_DEPTH):
        raise ValueError("its metadata is no dict, or nests too deep")
    metrics = {str(name): float(value) for name, value in found["metrics"].items()}
    return Record(step, int(ours["nbytes"]), str(ours["created"]), metrics, metadata)
