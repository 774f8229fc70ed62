"""The tier `zarr`: each step a Zarr v3 group on a POSIX file system.

    runs/gpt/
      step-0000000100/              a step, layout `tree`
        zarr.json                   root group; its appearance is the commit
        model/zarr.json             a part: group
        model/h.0.attn.weight/      an array: zarr.json and one data file, c.0.0
        .datastates/manifest.0/     our manifest, itself a Zarr array of bytes
      step-0000000150/              a step, layout `packed`
        zarr.json                   as above
        .datastates/manifest.0/     as above
        .datastates/image.0         the data of all arrays
      step-0000000200.lease         someone is writing that step now

A directory without `zarr.json` at its root is no Zarr group, to us or to anyone: so the atomic
rename of that one file is the whole commit, and its removal the first act of a deletion. A step
that is saved again gets a directory of its own (`step-0000000100.1`), since a name that is
replaced is missing for a moment on some network file systems.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
from pathlib import Path
from time import sleep

from datastates.errors import CorruptError, FormatError, StepNotFoundError, StorageError, UsageError
from datastates.plan import Plan
from datastates.tier import DurableTier, Entry, Incomplete, Record, StepReader, StepWriter

from . import lease
from .layout import LAYOUTS, choose
from .posix import Files, free_nbytes, sync_path, translated
from .zarr_metadata import MALFORMED, PACKED, TREE, read_record
from .zarr_packed import IMAGE, PackedReader, PackedWriter
from .zarr_reader import ZarrReader, read_document
from .zarr_tree import TreeReader, TreeWriter
from .zarr_writer import ZarrWriter

log = logging.getLogger("datastates")

_WRITERS: dict[str, type[ZarrWriter]] = {TREE: TreeWriter, PACKED: PackedWriter}
_NAME = re.compile(r"step-([0-9]{10,19})(?:\.([1-9][0-9]*))?", re.ASCII)
_MOMENT_MS = 100
_REASONS = {
    lease.Holder.ALIVE: "it is being written now",
    lease.Holder.UNKNOWN: "another host writes it, or has stopped within the last hour",
    lease.Holder.GONE: "its saver is gone and left it half-written",
}


def _name(entry: Entry) -> str:
    return f"step-{entry.step:010d}" + (f".{entry.generation}" if entry.generation else "")


def open_step(directory: int, entry: Entry, files: Files) -> ZarrReader:
    """Return a reader of the step in an open directory, which it takes over.

    The layout is told by what lies there: a step whose record is damaged can still be restored.
    """
    try:
        os.stat("/".join(IMAGE), dir_fd=directory, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return TreeReader(directory, entry, files)
    except BaseException:
        os.close(directory)
        raise
    return PackedReader(directory, entry, files)


def _entry(name: str) -> Entry | None:
    found = _NAME.fullmatch(name)
    if not found or f"step-{int(found[1]):010d}" != f"step-{found[1]}":
        return None
    return Entry(int(found[1]), int(found[2] or 0))


class ZarrTier(DurableTier):
    """Steps as Zarr groups below a directory; see the module for the layout.

    Args:
        location: the directory; made at the first save.
        fsync: make each step durable before it is committed. Without it a step survives the
            process, but not a power cut.
        direct: try to write and read past the page cache.
        layout: of new steps: "tree", "packed", or "auto" (see `layout.choose`). Any is read.
    """

    scheme = "zarr"
    layouts = LAYOUTS

    def __init__(
        self, location: str, *, fsync: bool = True, direct: bool = True, layout: str = "auto"
    ) -> None:
        super().__init__(location)
        if layout not in ("auto", *LAYOUTS):
            raise UsageError(f"{layout!r} is no layout; there are: auto, {', '.join(LAYOUTS)}")
        self._root = Path(location).absolute()
        if self._root.exists() and not self._root.is_dir():
            raise UsageError(f"{location} is no directory")
        self._fsync, self._layout = fsync, layout
        self._files = Files(direct=direct)

    def where(self, entry: Entry) -> str:
        """Return the step's directory, which `zarr.open` takes."""
        return str(self._root / _name(entry))

    def free_nbytes(self) -> int:
        """Return the free bytes of the file system."""
        with translated("look at", str(self._root)):
            return free_nbytes(self._root)

    # Writing.

    def begin(self, step: int, plan: Plan) -> StepWriter:
        """See `Tier.begin`. Takes the step's lease."""
        with translated("make a step below", str(self._root), plan.nbytes):
            self._make_root()
            layout = choose(self._root, plan) if self._layout == "auto" else self._layout
            entry, held = self._claim(step)
        path = self._root / _name(entry)
        return _WRITERS[layout](path, entry, held, plan, self._files, fsync=self._fsync)

    def _make_root(self) -> None:
        missing = [p for p in (self._root, *self._root.parents) if not p.exists()]
        self._root.mkdir(parents=True, exist_ok=True)
        for path in missing if self._fsync else ():
            sync_path(str(path.parent))

    def _claim(self, step: int) -> tuple[Entry, lease.Lease]:
        """Find a name for the step that is free, or whose writer is dead, and take its lease.

        It is never below one that is there: of two saves the one that began later must win.
        """
        there = [entry.generation for entry in self._directories() if entry.step == step]
        generation = max(there, default=0)
        while True:
            entry = Entry(step, generation)
            held = self._hold(entry)
            if held is not None:
                try:
                    if self._make_empty(self._root / _name(entry)):
                        return entry, held
                except BaseException:
                    held.release()
                    raise
                held.release()
            generation += 1

    def _hold(self, entry: Entry) -> lease.Lease | None:
        """Take the lease of a step, unless a live saver has it.

        Who holds one without a directory sweeps, or is about to make it: that is a moment.
        """
        for _ in range(_MOMENT_MS):
            held = lease.take(str(self._lease(entry)))
            if held is not None or (self._root / _name(entry)).exists():
                return held
            sleep(0.001)
        return None

    def _make_empty(self, path: Path) -> bool:
        """Make the directory of a step; False where there is a committed one."""
        if (path / "zarr.json").exists():
            return False
        if path.exists():
            shutil.rmtree(path)
        path.mkdir()
        return True

    def _lease(self, entry: Entry) -> Path:
        return self._root / f"{_name(entry)}.lease"

    # Reading.

    def entries(self) -> list[Entry]:
        """See `Tier.entries`."""
        return [entry for entry in self._directories() if self._is_committed(entry)]

    def newest(self) -> Entry | None:
        """See `Tier.newest`; looks at no more steps than it has to."""
        return next((e for e in reversed(self._directories()) if self._is_committed(e)), None)

    def _directories(self, suffix: str = "") -> list[Entry]:
        with translated("list", str(self._root)):
            try:
                names = os.listdir(self._root)
            except FileNotFoundError:
                return []
        found = (_entry(name.removesuffix(suffix)) for name in names if name.endswith(suffix))
        return sorted(entry for entry in found if entry is not None)

    def _is_committed(self, entry: Entry) -> bool:
        path = self._root / _name(entry) / "zarr.json"
        with translated("look at", str(path)):
            try:
                path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return False
        return True

    def info(self, entry: Entry) -> Record:
        """See `Tier.info`."""
        path = f"{self.where(entry)}/zarr.json"
        with translated("read", path):
            directory = self._open_directory(entry)
            try:
                return read_record(entry.step, read_document(directory))
            except (*MALFORMED, RecursionError) as error:
                raise FormatError(
                    f"{path} is no commit record: {error!r:.200}", step=entry.step
                ) from error
            finally:
                os.close(directory)

    def open(self, entry: Entry) -> StepReader:
        """See `Tier.open`."""
        with translated("open", self.where(entry)):
            return open_step(self._open_directory(entry), entry, self._files)

    def _open_directory(self, entry: Entry) -> int:
        if not self._is_committed(entry):
            raise StepNotFoundError(f"step {entry.step} is not in {self!r}", step=entry.step)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        try:
            return os.open(self._root / _name(entry), flags)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            raise CorruptError(f"{self.where(entry)} is a link", step=entry.step) from error

    def incomplete(self) -> list[Incomplete]:
        """See `Tier.incomplete`; the lease tells who is writing."""
        found = []
        for entry in self._directories():
            if self._is_committed(entry):
                continue
            path = self._lease(entry)
            with translated("look at", str(path)):
                state = lease.holder(str(path))
            if (self._root / _name(entry)).is_dir() and not self._is_committed(entry):
                found.append(Incomplete(entry, state is not lease.Holder.GONE, _REASONS[state]))
        return found

    # Removing.

    def delete(self, entry: Entry) -> None:
        """See `Tier.delete`. The commit record goes first, the rest as of any unfinished step."""
        path = self._root / _name(entry)
        if path.is_symlink():
            raise StorageError(f"cannot remove {path}: it is a link")
        with translated("remove", str(path)):
            try:
                (path / "zarr.json").unlink()
                if self._fsync:
                    sync_path(str(path))
            except FileNotFoundError:
                pass  # someone else was faster
            if path.exists():
                self._sweep(entry)

    def sweep(self) -> list[str]:
        """See `Tier.sweep`. What another host may still write is left alone for an hour."""
        removed = []
        half = {entry for entry in self._directories() if not self._is_committed(entry)}
        for entry in sorted(half.union(self._directories(".lease"))):
            path = self._root / _name(entry)
            try:
                with translated("sweep", str(path)):
                    if self._sweep(entry):
                        removed.append(path.name)
            except StorageError as error:
                log.warning("%s", error)
        return removed

    def _sweep(self, entry: Entry) -> bool:
        """Remove a step that is not committed, and the lease that a dead saver left."""
        held = lease.take(str(self._lease(entry)))
        if held is None:
            return False
        try:
            path = self._root / _name(entry)
            if self._is_committed(entry) or not path.exists():
                return False
            shutil.rmtree(path)
            return True
        finally:
            held.release()
