"""One committed step, read: the manifest says where every byte is, the files only hold them.

Everything is opened below the step's own directory, component by component, and no symbolic link
is followed; so a hostile checkpoint cannot point anywhere else.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

import numpy as np
from crc32c import crc32c

from datastates.errors import CorruptError, FormatError, StepNotFoundError
from datastates.manifest import MAX_MANIFEST_NBYTES, Array, Manifest, decode
from datastates.plan import Extent
from datastates.provider import Bytes
from datastates.tier import Damage, Entry, StepReader

from .posix import Files, open_beneath, translated
from .zarr_metadata import RESERVED, chunk_key, file_nbytes, is_described, is_sharded, shard_index

_MAX_DOCUMENT_NBYTES = 1 << 20


class ZarrReader(StepReader):
    """Reads one step; owns the descriptor of its directory."""

    def __init__(self, directory: int, entry: Entry, files: Files) -> None:
        self._directory, self._entry, self._files = directory, entry, files
        self._manifest: Manifest | None = None

    def manifest(self) -> Manifest:
        """See `StepReader.manifest`; read once."""
        if self._manifest is None:
            try:
                self._manifest = decode(self._read_manifest())
            except CorruptError as error:
                error.step = self._entry.step
                raise self._or_gone(error) from error
        return self._manifest

    def _read_manifest(self) -> memoryview:
        parts = (RESERVED, "manifest.0", "c.0")
        with translated("read", "/".join(parts)):
            fd = open_beneath(self._directory, parts)
            with open(fd, "rb") as file:
                nbytes = os.fstat(fd).st_size
                if not 4 <= nbytes <= MAX_MANIFEST_NBYTES + 4:
                    raise FormatError(f"a manifest of {nbytes} bytes is not believable")
                data = memoryview(file.read(nbytes))
        if len(data) != nbytes or crc32c(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
            raise CorruptError("the manifest fails its checksum")
        return data[:-4]

    def read(self, extent: Extent, out: Bytes) -> None:
        """See `StepReader.read`."""
        array = self.manifest().arrays[extent.array]
        grid = array.grid
        offset = extent.index * grid.stride if is_sharded(grid) else 0
        parts = (*array.node.split("/"), chunk_key(array))
        try:
            with translated("read", "/".join(parts)):
                self._files.read(self._directory, parts, offset, out)
        except CorruptError as error:
            error.key, error.step = array.node, self._entry.step
            raise self._or_gone(error) from error

    def problems(self) -> list[Damage]:
        """See `StepReader.problems`: documents, and ends of files, that mislead a Zarr reader."""
        wrong = []
        for array in self.manifest().arrays:
            node = f"{array.node}/zarr.json"
            if array.alias is None and not is_described(array, self._document(node)):
                wrong.append(Damage(node, "is missing or does not describe the array"))
            if array.extents and not self._ends_right(array):
                what = "does not end as it should: a Zarr reader looks for its checksums there"
                wrong.append(Damage(f"{array.node}/{chunk_key(array)}", what))
        return wrong

    def _ends_right(self, array: Array) -> bool:
        """Tell whether the index, or nothing, follows the chunks; of those, their reading tells."""
        parts = (*array.node.split("/"), chunk_key(array))
        grid = array.grid
        index = shard_index(grid) if is_sharded(grid) else b""
        with translated("read", "/".join(parts)):
            try:
                fd = open_beneath(self._directory, parts)
            except CorruptError:
                return True
            with open(fd, "rb") as file:
                file.seek(file_nbytes(grid) - len(index))
                return file.read(len(index) + 1) == index

    def _document(self, node: str) -> Any:
        """Return a small JSON file, or None where there is none that can be read."""
        try:
            with translated("read", node):
                fd = open_beneath(self._directory, tuple(node.split("/")))
                with open(fd, "rb") as file:
                    return json.loads(file.read(_MAX_DOCUMENT_NBYTES).decode())
        except (CorruptError, ValueError, RecursionError):
            return None

    def _or_gone(self, error: CorruptError) -> Exception:
        """A step that was removed meanwhile is not damaged; its record goes first."""
        try:
            os.stat("zarr.json", dir_fd=self._directory)
        except OSError:
            return StepNotFoundError(
                f"step {self._entry.step} was removed while it was read", step=self._entry.step
            )
        return error

    def close(self) -> None:
        """See `StepReader.close`."""
        os.close(self._directory)


def manifest_file(packed: bytes) -> Bytes:
    """Return the data file of a manifest: its bytes and their checksum, one Zarr chunk."""
    return np.frombuffer(packed + struct.pack("<I", crc32c(packed)), np.uint8)
