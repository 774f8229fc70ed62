"""One step on its way to disk: what is the same in every layout.

Order, so that a crash at any point leaves either the whole step or nothing that counts:

1. directories, and large files at their full size;
2. chunks, straight from the arena, several at a time; what else is known is written and synced
   meanwhile, if the layout has so much of it;
3. the manifest, then one pass of fsync over what was not yet synced, directories last to be done;
4. the root `zarr.json`, written under another name, synced, and renamed: the commit; the
   directory synced after it.
"""

from __future__ import annotations

import logging
import os
import shutil
from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from datastates.errors import StorageError
from datastates.manifest import Array, Manifest, encode
from datastates.plan import Plan
from datastates.provider import Bytes
from datastates.tier import Entry, Record, StepWriter
from datastates.workers import run_all

from .lease import Lease
from .posix import Files, sync_path, translated
from .zarr_metadata import (
    MAX_RECORD_NBYTES,
    RESERVED,
    Document,
    array_document,
    attributes,
    chunk_key,
    group_document,
    to_json,
)
from .zarr_reader import MANIFEST, manifest_file

log = logging.getLogger("datastates")

_SYNC_THREADS = 8


class ZarrWriter(StepWriter):
    """Writes one step into a directory whose lease it holds."""

    layout: ClassVar[str]

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
        self._grids = plan.grids
        try:
            with translated("make", str(path), plan.nbytes):
                self._prepare()
        except BaseException:
            self.abort()
            raise

    # What layouts differ in.

    @abstractmethod
    def _prepare(self) -> None:
        """Make what chunks are written into, and the group of what is ours."""

    @abstractmethod
    def _settle(self) -> list[str]:
        """Write what is left beside the manifest; return the paths that are still to be synced."""

    def _shown(self) -> Document | None:
        """Return consolidated metadata for the root, if there may be any."""
        return None

    # Durability.

    def seal(self, manifest: Manifest) -> None:
        """See `StepWriter.seal`."""
        packed = encode(manifest)
        record = Array("/".join(MANIFEST), "uint8", (len(packed),), (len(packed),))
        with translated("write", str(self._path), self._nbytes):
            os.mkdir(self._at(record.node))
            self._write_file(f"{record.node}/{chunk_key(record)}", manifest_file(packed))
            self._write_document(record.node, array_document(record))
            synced = [f"{record.node}/{chunk_key(record)}", f"{record.node}/zarr.json"]
            synced += [*self._settle(), record.node, f"{RESERVED}/zarr.json", RESERVED]
            paths = [*map(self._at, synced), str(self._path), str(self._path.parent)]
            if self._fsync:
                run_all([partial(sync_path, p) for p in paths], _SYNC_THREADS, "datastates-sync")

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _make_group(self, name: str) -> None:
        os.mkdir(self._at(name))
        self._write_document(name, group_document({}))

    def _write_document(self, node: str, document: Mapping[str, object]) -> None:
        self._write_file(f"{node}/zarr.json", np.frombuffer(to_json(dict(document)), np.uint8))

    def _write_file(self, name: str, content: Bytes) -> None:
        self._files.write(self._at(name), content, 0, len(content), whole=True)

    # The end.

    def commit(self, record: Record) -> Entry:
        """See `StepWriter.commit`."""
        root = group_document(attributes(record, self._arrays, self.layout))
        shown = self._shown()
        if shown is not None:
            root["consolidated_metadata"] = shown
        text = to_json(root)
        if len(text) > MAX_RECORD_NBYTES:
            raise StorageError(f"the metrics and metadata of the step take {len(text)} bytes")
        temporary, final = self._at("zarr.json.new"), self._at("zarr.json")
        with translated("commit", final):
            self._write_file("zarr.json.new", np.frombuffer(text, np.uint8))
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
