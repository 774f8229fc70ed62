"""The arrays of a step: found by name, and described."""

from __future__ import annotations

from difflib import get_close_matches

from rich.table import Table
from rich.text import Text

from datastates.manifest import Array, Manifest
from datastates.names import decode_name, readable
from datastates.provider import LeafRef

from .command import NotFoundError
from .output import human, plural, table

__all__ = ["array_at", "arrays_table", "arrays_total", "as_json", "find_array", "shape_text"]


def array_at(ref: LeafRef, manifest: Manifest) -> Array | None:
    """Return the array that a reference means; None where a malformed manifest has none."""
    return manifest.arrays[ref.index] if ref.index < len(manifest.arrays) else None


def find_array(manifest: Manifest, name: str) -> int:
    """Return the index of the array called `name`, as `show` lists it or as a path.

    Raises:
        NotFoundError: there is none.
    """
    nodes = [array.node for array in manifest.arrays]
    if name in nodes:
        return nodes.index(name)
    paths = [readable(decode_name(node)) for node in nodes]
    if name in paths:
        return paths.index(name)
    near = get_close_matches(name, nodes, 3, 0.5)
    hint = f"; do you mean {', '.join(near)}?" if near else ""
    raise NotFoundError(f"there is no array {name!r} in this step{hint}")


def shape_text(array: Array) -> str:
    """Return a shape for a person: (1024, 768)."""
    return str(array.shape) if array.shape else "scalar"


def chunks_text(array: Array) -> str:
    """Return how an array is cut: 4 of (256, 768)."""
    if array.inline is not None:
        return "in the manifest"
    if array.extents < 2:
        return str(array.extents)
    return f"{array.extents:,} of {array.chunk}"


def arrays_table(manifest: Manifest) -> Table:
    """Return a table of all arrays."""
    found = table("array", "type", "shape", "size", "chunks", right=("size",))
    for array in manifest.arrays:
        size, chunks = human(array.nbytes), Text(chunks_text(array), "dim")
        if array.alias is not None:
            size, chunks = "", Text(f"→ {manifest.arrays[array.alias.base].node}", "cyan")
        found.add_row(array.node, array.dtype, shape_text(array), size, chunks)
    return found


def arrays_total(manifest: Manifest) -> Text:
    """Return the line below the table."""
    stored = [array for array in manifest.arrays if array.alias is None]
    tied = len(manifest.arrays) - len(stored)
    text = f"{plural(len(stored), 'array')}, {human(sum(a.nbytes for a in stored))}"
    return Text(text + (f"; {tied:,} more share their memory (→)" if tied else ""), "dim")


def as_json(array: Array, manifest: Manifest) -> dict[str, object]:
    """Return what the manifest says of an array."""
    base = None if array.alias is None else manifest.arrays[array.alias.base].node
    return {
        "name": array.node,
        "dtype": array.dtype,
        "shape": array.shape,
        "nbytes": array.nbytes,
        "chunk": array.chunk,
        "chunks": array.extents,
        "alias_of": base,
    }
