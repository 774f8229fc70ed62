"""A step as a Zarr store: which keys it has, and what or where their contents are.

Documents follow from the manifest, so they are made when somebody asks for one: a hostile manifest
may name hundreds of thousands of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from datastates.manifest import Array
from datastates.plan import data_nbytes
from datastates.tier import Span

from .zarr_metadata import array_document, chunk_key, consolidated, group_document, to_json

_MAX_SHOWN = 1 << 13
"""Arrays up to which the root describes them all; beyond, that would be too long anyway."""


class ZarrKeys(Mapping[str, bytes | Span]):
    """Key → contents, or the range of a file of the step that holds them."""

    def __init__(
        self,
        attributes: Mapping[str, Any],
        arrays: Sequence[Array],
        data: Callable[[Array], tuple[tuple[str, ...], int]],
    ) -> None:
        """`data` tells the file of an array, and where in it its data start."""
        self._attributes, self._data = attributes, data
        self._arrays = [array for array in arrays if array.alias is None]
        self._parts = sorted({a.node.partition("/")[0] for a in self._arrays if "/" in a.node})
        self._keys: dict[str, Array | None] = {"zarr.json": None}
        self._keys |= {f"{part}/zarr.json": None for part in self._parts}
        for array in self._arrays:
            self._keys[f"{array.node}/zarr.json"] = array
            if array.extents:
                self._keys[f"{array.node}/{chunk_key(array)}"] = array

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __getitem__(self, key: str) -> bytes | Span:
        array = self._keys[key]
        if key == "zarr.json":
            return to_json(self._root())
        if array is None:
            return to_json(group_document({}))
        if key.endswith("/zarr.json"):
            return to_json(array_document(array))
        file, start = self._data(array)
        return Span("/".join(file), start, data_nbytes(array.grid))

    def _root(self) -> dict[str, Any]:
        root = group_document(self._attributes)
        shown = None
        if len(self._arrays) <= _MAX_SHOWN:
            nodes = {part: group_document({}) for part in self._parts}
            nodes |= {array.node: array_document(array) for array in self._arrays}
            shown = consolidated(nodes, self._arrays)
        return root if shown is None else root | {"consolidated_metadata": shown}
