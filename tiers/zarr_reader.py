"""One committed step, read: the manifest says where every byte is, the files only hold them.

Everything is opened below the step's own directory, component by component, and no symbolic link
is followed; so a hostile checkpoint cannot point anywhere else.
"""

from __future__ import annotations

import json
import os
import struct
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from crc32c import crc32c

from datastates.errors import CorruptError, FormatError, StepNotFoundError
from datastates.manifest import MAX_MANIFEST_NBYTES, Array, Manifest, decode
from datastates.plan import Extent, data_nbytes
from datastates.provider import Bytes
from datastates.tier import Damage, Entry, Span, StepReader

from .posix import Files, open_beneath, translated
from .zarr_keys import ZarrKeys
from .zarr_metadata import (
    MALFORMED,
    MAX_RECORD_NBYTES,
    RESERVED,
    chunk_key,
    is_sharded,
    read_record,
    shard_index,
)

MANIFEST = (RESERVED, "manifest.0")
"""The node of the manifest."""


def read_document(directory: int) -> Any:
    """Return the root document of a step, which nobody has checked.

    Raises:
        CorruptError: it is missing. ValueError, RecursionError: it is no JSON, or too long.
    """
    with open(open_beneath(directory, ("zarr.json",)), "rb") as file:
        text = file.read(MAX_RECORD_NBYTES + 1)
    if len(text) > MAX_RECORD_NBYTES:
        raise ValueError("it is too long")
    return json.loads(text.decode())


class ZarrReader(StepReader):
    """Reads one step; owns the descriptor of its directory. What differs is where data lies."""

    _shared: ClassVar[bool] = False
    """True where a file holds more than one array."""

    def __init__(self, directory: int, entry: Entry, files: Files) -> None:
        self._directory, self._entry, self._files = directory, entry, files
        self._manifest: Manifest | None = None

    @abstractmethod
    def _data(self, array: Array) -> tuple[tuple[str, ...], int]:
        """Return the file that holds an array's data, and where in it they start."""

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
        parts = (*MANIFEST, "c.0")
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
        parts, start = self._data(array)
        try:
            with translated("read", "/".join(parts)):
                offset = start + extent.index * array.grid.stride
                self._files.read(self._directory, parts, offset, out)
        except CorruptError as error:
            error.key, error.step = array.node, self._entry.step
            raise self._or_gone(error) from error

    def problems(self) -> list[Damage]:
        """See `StepReader.problems`: documents, and ends of data, that mislead a Zarr reader."""
        arrays = self.manifest().arrays
        return [*self._record(), *(wrong for array in arrays for wrong in self._misleading(array))]

    def _record(self) -> list[Damage]:
        """A step can be restored without its record, but no Zarr reader opens it."""
        try:
            with translated("read", "zarr.json"):
                read_record(self._entry.step, read_document(self._directory))
        except CorruptError as error:
            found = self._or_gone(error)
            if found is not error:
                raise found from error
            return [Damage("zarr.json", str(error).removeprefix("zarr.json "))]
        except (*MALFORMED, RecursionError) as error:
            return [Damage("zarr.json", f"is no commit record: {error!r:.200}")]
        return []

    def _misleading(self, array: Array) -> list[Damage]:
        if not array.extents or self._ends_right(array):
            return []
        what = "does not end as it should: a Zarr reader looks for its checksums there"
        return [Damage(f"{array.node}/{chunk_key(array)}", what)]

    def _ends_right(self, array: Array) -> bool:
        """Tell whether the index follows the chunks of a shard; of those, their reading tells."""
        grid = array.grid
        parts, start = self._data(array)
        index = shard_index(grid) if is_sharded(grid) else b""
        with translated("read", "/".join(parts)):
            try:
                fd = open_beneath(self._directory, parts)
            except CorruptError:
                return True
            with open(fd, "rb") as file:
                stop = start + data_nbytes(grid)
                if stop > os.fstat(fd).st_size:
                    return not index
                file.seek(stop - len(index))
                return file.read(len(index)) == index and (self._shared or not file.read(1))

    def as_zarr(self) -> ZarrKeys:
        """See `StepReader.as_zarr`."""
        try:
            with translated("read", "zarr.json"):
                attributes = dict(read_document(self._directory)["attributes"])
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise FormatError(f"zarr.json is no commit record: {error!r:.200}") from error
        return ZarrKeys(attributes, self.manifest().arrays, self._data)

    def read_span(self, span: Span) -> bytes:
        """Return a part of a file of the step; no longer than what is there.

        Raises:
            CorruptError: the file is missing or ends before.
        """
        parts = tuple(span.file.split("/"))
        with translated("read", span.file):
            fd = open_beneath(self._directory, parts)
            nbytes = os.fstat(fd).st_size
            os.close(fd)
            if span.offset + span.nbytes > nbytes:
                raise CorruptError(f"{span.file} ends at {nbytes}, within what is asked for")
            out = np.empty(span.nbytes, np.uint8)
            self._files.read(self._directory, parts, span.offset, out)
        return out.tobytes()

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
