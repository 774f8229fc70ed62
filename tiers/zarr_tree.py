"""The layout `tree`: a directory for each array, with its `zarr.json` and one data file.

Any Zarr reader opens it. All that is known when the step begins is written beside the chunks, and
each array is synced as soon as it is complete: so little is left to do when the last chunk is
written. (One pass of syncing at the end took 0.15 s longer for a step of 1 GiB in 444 arrays.)
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from functools import partial
from typing import Any

from datastates.errors import CorruptError
from datastates.manifest import Array
from datastates.plan import Extent, Segment, data_nbytes
from datastates.provider import Bytes
from datastates.tier import Damage, Entry, Record

from .background import Background
from .posix import open_beneath, preallocate, sync_path, translated, write_all
from .zarr_metadata import (
    RESERVED,
    TREE,
    Document,
    array_document,
    chunk_key,
    consolidated,
    group_document,
    is_described,
    is_sharded,
    shard_index,
)
from .zarr_reader import ZarrReader
from .zarr_writer import ZarrWriter

_THREADS = 8
_MAX_DOCUMENT_NBYTES = 1 << 20


def _data_file(array: Array) -> tuple[str, ...]:
    return (*array.node.split("/"), chunk_key(array))


class TreeWriter(ZarrWriter):
    """Writes a step as a tree of Zarr nodes."""

    layout = TREE

    def _prepare(self) -> None:
        self._background = Background(_THREADS, "datastates-tree")
        self._lock = threading.Lock()
        self._left = [array.extents + 1 for array in self._arrays]  # chunks, and the document
        stored = [i for i, array in enumerate(self._arrays) if array.alias is None]
        nodes = (self._arrays[i].node for i in stored)
        self._parts = sorted({node.partition("/")[0] for node in nodes if "/" in node})
        for group in (*self._parts, RESERVED):
            self._make_group(group)
        for i in stored:
            if self._arrays[i].extents and is_sharded(self._grids[i]):
                self._make_shard(i)
        for i in stored:
            self._background.submit(partial(self._describe, i))

    def _make_shard(self, i: int) -> None:
        """Make the file of a shard with all its room, and the index at its end."""
        self._make_node(i)
        nbytes, index = data_nbytes(self._grids[i]), shard_index(self._grids[i])
        fd = os.open(self._file(i), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        try:
            preallocate(fd, nbytes)
            write_all(fd, index, nbytes - len(index))
        finally:
            os.close(fd)

    def _make_node(self, i: int) -> None:
        with contextlib.suppress(FileExistsError):  # whoever comes first: document or chunk
            os.mkdir(self._at(self._arrays[i].node))

    def _file(self, i: int) -> str:
        return self._at("/".join(_data_file(self._arrays[i])))

    # Behind.

    def _describe(self, i: int) -> None:
        node = self._arrays[i].node
        with translated("write", self._at(f"{node}/zarr.json"), self._nbytes):
            self._make_node(i)
            self._write_document(node, array_document(self._arrays[i]))
        self._done(i)

    def _done(self, i: int) -> None:
        """Count what is there of an array; the last of it makes it durable."""
        with self._lock:
            self._left[i] -= 1
            complete = not self._left[i]
        if complete and self._fsync:
            self._background.submit(partial(self._sync, i))

    def _sync(self, i: int) -> None:
        node = self._at(self._arrays[i].node)
        data = [self._file(i)] if self._arrays[i].extents else []
        for path in (*data, f"{node}/zarr.json", node):
            with translated("sync", path, self._nbytes):
                sync_path(path)

    # Chunks.

    def write(self, segment: Segment, data: Bytes) -> None:
        """See `StepWriter.write`."""
        self._lease.touch()
        for extent in segment.extents:
            self._background.check()
            with translated("write", self._file(extent.array), self._nbytes):
                self._write_extent(extent, data[extent.offset - segment.offset :])

    def _write_extent(self, extent: Extent, data: Bytes) -> None:
        i, grid = extent.array, self._grids[extent.array]
        if is_sharded(grid):
            offset = extent.index * grid.stride
            self._files.write(self._file(i), data, offset, extent.nbytes, whole=False)
        else:
            self._make_node(i)
            self._files.write(self._file(i), data, 0, extent.nbytes, whole=True)
        self._done(i)

    def _settle(self) -> list[str]:
        self._background.wait()
        return [name for part in self._parts for name in (f"{part}/zarr.json", part)]

    def _shown(self) -> Document | None:
        stored = [array for array in self._arrays if array.alias is None]
        nodes = {part: group_document({}) for part in self._parts}
        return consolidated(nodes | {a.node: array_document(a) for a in stored}, stored)

    def commit(self, record: Record) -> Entry:
        """See `StepWriter.commit`."""
        entry = super().commit(record)
        self._background.stop()
        return entry

    def abort(self) -> None:
        """See `StepWriter.abort`; what is written behind must not come after it."""
        self._background.stop()
        super().abort()


class TreeReader(ZarrReader):
    """Reads a step that lies as a tree."""

    def _data(self, array: Array) -> tuple[tuple[str, ...], int]:
        return _data_file(array), 0

    def _misleading(self, array: Array) -> list[Damage]:
        wrong = super()._misleading(array)
        node = f"{array.node}/zarr.json"
        if array.alias is None and not is_described(array, self._document(node)):
            wrong.insert(0, Damage(node, "is missing or does not describe the array"))
        return wrong

    def _document(self, node: str) -> Any:
        """Return a small JSON file, or None where there is none that can be read."""
        try:
            with translated("read", node):
                fd = open_beneath(self._directory, tuple(node.split("/")))
                with open(fd, "rb") as file:
                    return json.loads(file.read(_MAX_DOCUMENT_NBYTES).decode())
        except (CorruptError, ValueError, RecursionError):
            return None
