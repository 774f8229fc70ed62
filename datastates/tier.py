"""The contract between the pipeline and a place where checkpoints lie.

A tier stores images: bytes at offsets, and a manifest. It never sees a tensor, a provider or a
policy. Whatever it is (memory, files, an object store, a peer), it answers the same question:
give me extent e of step s.

Life of a step in a tier:

1. `begin(step, plan)` on the saver's thread: a place that no reader sees.
2. `write(segment, data)` from several threads, in any order, each segment once.
3. `seal(manifest)`: all bytes and the manifest are as durable as the tier makes them.
4. `commit(record)`: the step appears, whole, in one atomic act; or
   `abort()`: nothing of it is left.
5. `entries`, `info`, `open` by any number of readers, in any process.
6. `delete`: the step disappears in one atomic act, its bytes after that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .manifest import Manifest
from .plan import Extent, Plan, Segment
from .provider import Bytes

__all__ = [
    "Damage",
    "DurableTier",
    "Entry",
    "Incomplete",
    "Record",
    "Span",
    "StepReader",
    "StepWriter",
    "Tier",
]


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """A committed step in a tier."""

    step: int
    generation: int = 0
    """Counts saves of the same step; the highest is the valid one."""


@dataclass(frozen=True, slots=True, order=True)
class Incomplete:
    """A step that is not committed: on its way, or half-written and left behind."""

    entry: Entry
    alive: bool
    """True where its saver is alive, or may be; `sweep` removes the others."""
    reason: str
    """Why it is not complete, for a person: "being written now"."""


@dataclass(frozen=True, slots=True)
class Record:
    """What the commit of a step says about it."""

    step: int
    nbytes: int
    """Bytes of the values in it."""
    created: str
    """When it was committed: ISO 8601, UTC."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Damage:
    """Something in a step that is not as it was saved."""

    name: str
    """The array, or the document, by its name in the step."""
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a file of a step."""

    file: str
    """Path of the file, below the step."""
    offset: int
    """First byte in the file."""
    nbytes: int


class StepWriter(ABC):
    """One step on its way into a tier; see the module for the order of calls."""

    @abstractmethod
    def write(self, segment: Segment, data: Bytes) -> None:
        """Store the extents of one segment. Several threads at once; blocks until handed over.

        `data` is the segment's part of the image; it is page-aligned, and not kept after return.
        What lies between and behind its extents is zero, and the writer's to use.

        Raises:
            StorageError: it could not be stored; the step can only be aborted then.
        """

    @abstractmethod
    def seal(self, manifest: Manifest) -> None:
        """Store the manifest and make all that was written durable. Blocks until it is.

        Raises:
            StorageError: something may not be durable; the step can only be aborted then.
        """

    @abstractmethod
    def commit(self, record: Record) -> Entry:
        """Make the step visible, atomically. On return it is durable and readers find it.

        Raises:
            StorageError: the step is not visible; it can only be aborted then.
        """

    @abstractmethod
    def abort(self) -> None:
        """Remove what was written. Never raises; what cannot be removed now is swept later."""


class StepReader(ABC):
    """One committed step, open for reading. Use as a context manager, or `close` it."""

    @abstractmethod
    def manifest(self) -> Manifest:
        """Return the step's manifest.

        Raises:
            FormatError: it cannot be read as one.
            CorruptError: it is missing or damaged.
        """

    @abstractmethod
    def read(self, extent: Extent, out: Bytes) -> None:
        """Fill `out` with the first `len(out)` bytes of an extent. Several threads at once.

        The bytes are not verified: the caller has the manifest's checksum.

        Raises:
            CorruptError: the extent is missing or short.
            StorageError: it could not be read.
        """

    def problems(self) -> list[Damage]:
        """Return what is wrong with what the tier keeps beside extents and manifest, for `verify`.

        Raises:
            CorruptError: the manifest cannot be read.
        """
        return []

    def as_zarr(self) -> Mapping[str, bytes | Span] | None:
        """Return the keys of the step as a Zarr store: contents, or where they lie.

        None where the step does not lie in files.

        Raises:
            CorruptError: the manifest cannot be read.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Give back what the reader holds. Reads under way must have ended."""

    def __enter__(self) -> StepReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Tier(ABC):
    """A place where steps are kept. All methods may be called from any thread."""

    scheme: ClassVar[str]
    """Its name among the entry points, and in locations (`scheme://…`)."""

    layouts: ClassVar[Sequence[str]] = ()
    """What its keyword `layout` takes beside "auto", if it has one."""

    def __init__(self, location: str) -> None:
        self.location = location
        """Where it keeps its steps, as the user wrote it, without the scheme."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.location}>"

    @abstractmethod
    def begin(self, step: int, plan: Plan) -> StepWriter:
        """Make a place for a new step, invisible to readers.

        Raises:
            StorageError: it cannot be made.
        """

    @abstractmethod
    def entries(self) -> Sequence[Entry]:
        """Return all committed steps, ascending. One listing; an empty place is an empty list.

        Raises:
            StorageError: the place cannot be listed. An error is never an empty list.
        """

    @abstractmethod
    def info(self, entry: Entry) -> Record:
        """Return the commit record of a step.

        Raises:
            StepNotFoundError: it is not there (any more).
            FormatError: the record cannot be read.
        """

    @abstractmethod
    def open(self, entry: Entry) -> StepReader:
        """Open a committed step.

        Raises:
            StepNotFoundError: it is not there (any more).
        """

    @abstractmethod
    def delete(self, entry: Entry) -> None:
        """Make a step invisible first, then remove its bytes. Gone already is no error.

        Raises:
            StorageError: it could not be removed; it may be invisible already.
        """

    @abstractmethod
    def sweep(self) -> list[str]:
        """Remove what dead savers left half-written, never what a live one writes.

        Returns the names of what was removed.
        """

    def incomplete(self) -> Sequence[Incomplete]:
        """Return what is there of steps that are not committed, ascending; changes nothing.

        Raises:
            StorageError: the place cannot be listed.
        """
        return ()

    def newest(self) -> Entry | None:
        """Return the newest committed step, or None where there is none."""
        return max(self.entries(), default=None)

    def where(self, entry: Entry) -> str:
        """Return a path or address at which a person finds the step."""
        return f"{self.scheme}://{self.location}/step-{entry.step}"

    def free_nbytes(self) -> int | None:
        """Return how much room is left, in bytes; None where nobody can tell."""
        return None

    def close(self) -> None:  # noqa: B027 - most tiers hold nothing
        """Give back what the tier holds. No call may follow."""


class DurableTier(Tier):
    """A tier whose committed steps outlive the process, the node and a power cut.

    It adds no method, only this promise: when `StepWriter.commit` has returned, the step is there
    after any crash, whole; and before, no reader ever saw a part of it.
    """
