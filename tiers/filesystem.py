"""`datastates://`: steps of either layout as files that Zarr reads, by way of fsspec.

    zarr.open("datastates:///runs/gpt/step-0000000100")

fsspec finds this file system by its entry point, so nothing need be imported. It is read-only.
Nodes follow from the step's manifest, and chunks are ranges of its files, opened below the step as
a restore opens them; what is missing is an error, and never reads as zeros. Zarr itself checks the
checksums.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from typing import Any

from fsspec import AbstractFileSystem

from datastates.errors import StepNotFoundError
from datastates.tier import Entry, Span

from .posix import Files
from .zarr import open_step
from .zarr_keys import ZarrKeys
from .zarr_metadata import RESERVED
from .zarr_reader import ZarrReader

_ENTRY = Entry(0)
"""Stands for the step, whose directory may have any name here."""


class _Step:
    """One step: its keys, and its directories as Zarr would see them."""

    def __init__(self, keys: ZarrKeys) -> None:
        self.keys = keys
        self.directories: dict[str, dict[str, None]] = {"": {}}
        for key in keys:
            parent, _, name = key.rpartition("/")
            while name:
                known = parent in self.directories
                self.directories.setdefault(parent, {})[name] = None
                parent, _, name = ("", "", "") if known else parent.rpartition("/")


class StepFileSystem(AbstractFileSystem):  # type: ignore[misc] # fsspec ships no types
    """Steps below the local root, each a directory of Zarr nodes."""

    protocol = "datastates"
    cachable = False  # a step may be saved again, and this remembers what it has

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._files = Files()
        self._steps: dict[str, _Step] = {}

    # Finding.

    def _find_step(self, path: str) -> tuple[str, str]:
        """Cut a path into that of a step and what is below it."""
        parts = path.rstrip("/").split("/")
        for count in range(1, len(parts) + 1):
            root = "/".join(parts[:count])
            if root in self._steps or os.path.isdir(f"{root or '/'}/{RESERVED}"):
                return root, "/".join(parts[count:])
        raise FileNotFoundError(errno.ENOENT, "no step", path)

    @contextmanager
    def _open_step(self, root: str) -> Iterator[ZarrReader]:
        try:
            os.stat(f"{root}/zarr.json")
            directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            self._steps.pop(root, None)
            raise FileNotFoundError(errno.ENOENT, "no committed step", root) from error
        reader = open_step(directory, _ENTRY, self._files)
        try:
            yield reader
        except StepNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, "the step is gone", root) from error
        finally:
            reader.close()

    def _look(self, path: str) -> tuple[_Step, str, str]:
        """Return the step that a path lies in, the step's path, and the rest."""
        root, key = self._find_step(self._strip_protocol(path))
        if root not in self._steps:
            with self._open_step(root) as reader:
                self._steps[root] = _Step(reader.as_zarr())
        return self._steps[root], root, key

    # Listing.

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return name, size and type of a key, or of what lies above keys."""
        step, root, key = self._look(path)
        name = f"{root}/{key}" if key else root
        if key in step.directories:
            return {"name": name, "size": 0, "type": "directory"}
        if key not in step.keys:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        found = step.keys[key]
        nbytes = found.nbytes if isinstance(found, Span) else len(found)
        return {"name": name, "size": nbytes, "type": "file"}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """Return what lies directly below a path; a key lies below itself."""
        step, root, key = self._look(path)
        above = f"{root}/{key}" if key else root
        if key in step.directories:
            names = [f"{above}/{name}" for name in step.directories[key]]
        elif key in step.keys:
            names = [above]
        else:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return [self.info(name) for name in names] if detail else names

    # Reading.

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """Return the contents of a key, or a part as of a slice."""
        step, root, key = self._look(path)
        if key not in step.keys:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        found = step.keys[key]
        if isinstance(found, bytes):
            return found[start:end]
        first, stop, _step = slice(start, end).indices(found.nbytes)
        part = replace(found, offset=found.offset + first, nbytes=max(0, stop - first))
        with self._open_step(root) as reader:
            return reader.read_span(part)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> BytesIO:
        if mode != "rb":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return BytesIO(self.cat_file(path))

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Refuse: steps are removed through a checkpointer."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
