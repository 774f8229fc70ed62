"""Reading arrays back, done: several reads outstanding, each verified before it is handed out.

Scratch memory of 64 MiB is all that a restore takes beside its target. A short or wrong read is
made again (a network file system under load gives those) before the extent is called corrupt.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from crc32c import crc32c

from .arena import Arena
from .errors import CorruptError, DatastatesError, StorageError, StorageTimeoutError
from .grid import CHECKSUM_NBYTES, align
from .manifest import Manifest
from .memory import allocate
from .provider import Bytes
from .reads import ExtentRead, extents_of
from .snapshot import checksum_padding
from .tier import StepReader
from .workers import Workers

__all__ = ["READERS", "iterate", "run_reads"]

READERS = 16
"""Reads outstanding at a time."""

SCRATCH_NBYTES = 64 << 20
"""Most memory that reads take beside their targets."""

_ATTEMPTS = 3


def read_extent(reader: StepReader, manifest: Manifest, read: ExtentRead, out: Bytes) -> None:
    """Read one extent into `out`, verify it, and hand out its parts.

    Raises:
        CorruptError: it is missing, short, or fails its checksum, at each attempt.
    """
    array = manifest.arrays[read.extent.array]
    expected = manifest.checksums[read.extent.array][read.extent.index]
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            reader.read(read.extent, out)
            if _is_right(read, out, expected):
                break
            raise CorruptError(f"{array.node}: chunk {read.extent.index} fails its checksum")
        except CorruptError as error:
            error.key = array.node
            if attempt == _ATTEMPTS:
                raise
    for part in read.parts:
        part.put(out)


def _is_right(read: ExtentRead, out: Bytes, expected: int) -> bool:
    if not read.stored:
        return checksum_padding(crc32c(out.data), read.padding) == expected
    values, stored = out[:-CHECKSUM_NBYTES], out[-CHECKSUM_NBYTES:]
    return bool(crc32c(values.data) == expected == int.from_bytes(stored.tobytes(), "little"))


class _Scratch:
    """Memory for extents that are not read straight to where they belong."""

    def __init__(self, reads: Sequence[ExtentRead], timeout_s: float) -> None:
        sizes = [read.room for read in reads if read.out is None]
        budget = max(SCRATCH_NBYTES, align(max(sizes, default=0)))
        self._arena = Arena(budget)
        self._timeout_s = timeout_s

    @contextmanager
    def room(self, read: ExtentRead) -> Iterator[Bytes]:
        if read.out is not None:
            yield read.out
            return
        region = self._arena.acquire(read.room, self._timeout_s)
        try:
            yield region.data
        finally:
            self._arena.release(region)


class _Progress:
    """What the reads report to whoever waits for them."""

    def __init__(self, pending: Iterable[str]) -> None:
        self.changed = threading.Condition()
        self.pending = dict.fromkeys(pending)  # in order, and each is removed at once
        self.error: DatastatesError | None = None

    def failed(self) -> bool:
        with self.changed:
            return self.error is not None

    def end(self, name: str, error: DatastatesError | None) -> None:
        with self.changed:
            del self.pending[name]
            self.error = self.error or error
            self.changed.notify_all()

    def stop(self) -> None:
        """Let no read begin any more."""
        with self.changed:
            self.error = self.error or StorageError("given up")

    def wait(self, timeout_s: float) -> None:
        """Wait for all to end; the deadline is on progress, not on the whole."""
        with self.changed:
            while self.pending:
                if not self.changed.wait(timeout_s):
                    raise StorageTimeoutError(
                        f"no read has ended for {timeout_s:g} s; waiting for "
                        f"{', '.join([*self.pending][:3])}"
                    )
            if self.error is not None:
                raise self.error


def run_reads(
    reader: StepReader,
    manifest: Manifest,
    reads: Sequence[ExtentRead],
    *,
    timeout_s: float,
    done: Callable[[int], None] = lambda nbytes: None,
) -> None:
    """Make all reads, several at a time; the first error ends the others.

    Args:
        reader: the open step.
        manifest: its manifest.
        reads: from `plan_reads`.
        timeout_s: seconds without any read ending after which it is given up.
        done: called with the bytes of each read as it ends.

    Raises:
        CorruptError: an extent is missing, short or damaged.
        StorageTimeoutError: the storage does not answer. A read that is still out may write into
            its target later.
    """
    scratch = _Scratch(reads, timeout_s)
    progress = _Progress(f"{manifest.arrays[r.extent.array].node}#{r.extent.index}" for r in reads)
    names = list(progress.pending)

    def run(read: ExtentRead, name: str) -> None:
        error: DatastatesError | None = None
        try:
            if not progress.failed():
                with scratch.room(read) as out:
                    read_extent(reader, manifest, read, out)
                done(read.nbytes)
        except DatastatesError as failure:
            error = failure
        except BaseException as failure:  # nobody else would tell, and the caller waits
            error = StorageError(f"cannot read {name}: {failure!r}")
            error.__cause__ = failure
        progress.end(name, error)

    workers = Workers(min(READERS, max(1, len(reads))), "datastates-read")
    try:
        for read, name in zip(reads, names, strict=True):
            workers.submit(lambda r=read, n=name: run(r, n))  # type: ignore[misc]
        progress.wait(timeout_s)
    finally:
        progress.stop()
        workers.close()


def iterate(
    reader: StepReader, manifest: Manifest, index: int, *, timeout_s: float
) -> Iterator[Bytes]:
    """Yield the bytes of an array in C order, verified, in runs of whole elements.

    All runs lie in one buffer of at most 64 MiB (or one extent, where that is larger), so each is
    valid until the next is asked for. An alias has no bytes of its own: ask for its base's.

    Raises:
        CorruptError, StorageTimeoutError: as `run_reads`; what came before is right.
    """
    array = manifest.arrays[index]
    if array.inline is not None:
        yield np.frombuffer(array.inline, np.uint8)
    extents = extents_of(manifest, index)
    size = max(1, array.grid.chunk_nbytes)
    step = max(1, SCRATCH_NBYTES // size)
    memory = allocate(min(len(extents), step) * size)
    for first in range(0, len(extents), step):
        reads, stop = [], 0
        for extent, _, nbytes, padding in extents[first : first + step]:
            start, stop = stop, stop + nbytes
            reads.append(ExtentRead(extent, nbytes, padding, memory[start:stop]))
        run_reads(reader, manifest, reads, timeout_s=timeout_s)
        yield memory[:stop]
