"""One step on its way to disk.

Order, so that a crash at any point leaves either the whole step or nothing that counts:

1. directories, and shards at their full size;
2. chunks, straight from the arena, several at a time; nothing is synced yet, so the file system
   is free to batch;
3. metadata, manifest, then one pass of fsync over all files and directories: the first one writes
   the journal for all, the others find it done;
4. the root `zarr.json`, written under another name, synced, and renamed: the commit; the
   directory synced after it.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from datastates.errors import StorageError
from datastates.grid import Grid
from datastates.manifest import Array, Manifest, encode
from datastates.plan import Extent, Plan, Segment
from datastates.provider import Bytes
from datastates.tier import Entry, Record, StepWriter
from datastates.workers import run_all

from .lease import Lease
from .posix import Files, preallocate, sync_path, translated, write_all
from .zarr_metadata import (
    MAX_RECORD_NBYTES,
    RESERVED,
    Document,
    array_document,
    attributes,
    chunk_key,
    consolidated,
    group_document,
    is_sharded,
    shard_index,
    to_json,
)
from .zarr_reader import manifest_file

log = logging.getLogger("datastates")

_SYNC_THREADS = 8


class ZarrWriter(StepWriter):
    """Writes one step into a directory whose lease it holds."""

    def __init__(
        self,
        path: Path,
        entry: Entry,
        lease: Lease,
        plan: Plan,
        files: Files,
        *,
        fsync: bool,
    ) -> None:
        self._path, self._entry, self._lease, self._files = path, entry, lease, files
        self._arrays, self._nbytes, self._fsync = plan.arrays, plan.nbytes, fsync
        self._grids = [array.grid for array in plan.arrays]
        self._nodes: dict[str, Document] = {}
        try:
            with translated("make", str(path), plan.nbytes):
                self._prepare()
        except BaseException:
            self.abort()
            raise

    def _prepare(self) -> None:
        parts = {a.node.partition("/")[0] for a in self._stored() if "/" in a.node}
        for part in sorted(parts | {RESERVED}):
            (self._path / part).mkdir()
            self._nodes[part] = group_document({})
        for array, grid in zip(self._arrays, self._grids, strict=True):
            if array.extents and is_sharded(grid):
                self._make_shard(array, grid)

    def _stored(self) -> list[Array]:
        return [array for array in self._arrays if array.alias is None]

    def _make_shard(self, array: Array, grid: Grid) -> None:
        """Make the file of a shard with all its room, and the index at its end."""
        (self._path / array.node).mkdir()
        index = shard_index(grid)
        at = grid.count * grid.stride
        fd = os.open(self._file(array), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        try:
            preallocate(fd, at + len(index))
            write_all(fd, index, at)
        finally:
            os.close(fd)

    def _file(self, array: Array) -> str:
        return f"{self._path}/{array.node}/{chunk_key(array)}"

    # Chunks.

    def write(self, segment: Segment, data: Bytes) -> None:
        """See `StepWriter.write`."""
        self._lease.touch()
        for extent in segment.extents:
            self._write_extent(extent, data[extent.offset - segment.offset :])

    def _write_extent(self, extent: Extent, data: Bytes) -> None:
        array, grid = self._arrays[extent.array], self._grids[extent.array]
        path = self._file(array)
        with translated("write", path, self._nbytes):
            if is_sharded(grid):
                offset = extent.index * grid.stride
                self._files.write(path, data, offset, extent.nbytes, whole=False)
            else:
                os.mkdir(f"{self._path}/{array.node}")
                self._files.write(path, data, 0, extent.nbytes, whole=True)

    # Metadata, durability.

    def seal(self, manifest: Manifest) -> None:
        """See `StepWriter.seal`."""
        packed = encode(manifest)
        content = manifest_file(packed)
        node = f"{RESERVED}/manifest.0"
        record = Array(node, "uint8", (len(packed),), (len(packed),))
        with translated("write", str(self._path), self._nbytes):
            for array in [*self._stored(), record]:
                self._nodes[array.node] = array_document(array)
                if array is record or not array.extents:
                    (self._path / array.node).mkdir()
            self._small_file(f"{node}/{chunk_key(record)}", content)
            run_all([partial(self._write_node, n) for n in self._nodes], 4, "datastates-meta")
            if self._fsync:
                run_all(self._syncs(), _SYNC_THREADS, "datastates-sync")

    def _write_node(self, node: str) -> None:
        text = np.frombuffer(to_json(self._nodes[node]), np.uint8)
        self._small_file(f"{node}/zarr.json", text)

    def _small_file(self, name: str, content: Bytes) -> None:
        self._files.write(f"{self._path}/{name}", content, 0, len(content), whole=True)

    def _syncs(self) -> list[Callable[[], None]]:
        """All that must be durable: files first, then the directories that name them."""
        files = [self._file(array) for array in self._stored() if array.extents]
        files.append(f"{self._path}/{RESERVED}/manifest.0/c.0")
        for node in self._nodes:
            files += [f"{self._path}/{node}/zarr.json", f"{self._path}/{node}"]
        above = [str(self._path), str(self._path.parent)]
        return [partial(sync_path, path) for path in [*files, *above]]

    # The end.

    def commit(self, record: Record) -> Entry:
        """See `StepWriter.commit`."""
        root = group_document(attributes(record, self._arrays))
        shown = {name: doc for name, doc in self._nodes.items() if name.split("/")[0] != RESERVED}
        found = consolidated(shown, self._stored())
        if found is not None:
            root["consolidated_metadata"] = found
        text = to_json(root)
        if len(text) > MAX_RECORD_NBYTES:
            raise StorageError(f"the metrics and metadata of the step take {len(text)} bytes")
        temporary, final = f"{self._path}/zarr.json.new", f"{self._path}/zarr.json"
        with translated("commit", final):
            self._small_file("zarr.json.new", np.frombuffer(text, np.uint8))
            if self._fsync:
                sync_path(temporary)
            os.rename(temporary, final)
            try:
                if self._fsync:
                    sync_path(str(self._path))
            except OSError:
                os.unlink(final)  # not known to be durable, so it must not be seen
                raise
        self._release()
        return self._entry

    def abort(self) -> None:
        """See `StepWriter.abort`."""
        try:
            shutil.rmtree(self._path)
        except OSError as error:
            log.warning("cannot remove the half-written %s now: %s", self._path, error)
        self._release()

    def _release(self) -> None:
        try:
            self._lease.release()
        except OSError as error:
            log.warning("cannot remove %s: %s", self._lease.path, error)
