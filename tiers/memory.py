"""The reference tier: steps in the memory of this process.

It is the shortest thing that keeps the contract, so it is what other tiers are compared with, and
what tests use where storage does not matter. Two checkpointers on the same `memory://name` see the
same steps, as two processes on one directory would.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np

from datastates.errors import CorruptError, StepNotFoundError, StorageError
from datastates.manifest import Manifest, decode, encode
from datastates.plan import Extent, Plan, Segment
from datastates.provider import Bytes
from datastates.tier import Entry, Record, StepReader, StepWriter, Tier


@dataclass(slots=True)
class _Step:
    image: Bytes
    manifest: bytes = b""
    record: Record | None = None


@dataclass(slots=True)
class _Place:
    lock: threading.Lock = field(default_factory=threading.Lock)
    steps: dict[Entry, _Step] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)
    """The highest generation given out, by step."""


_places: dict[str, _Place] = {}
_places_lock = threading.Lock()


class _Writer(StepWriter):
    def __init__(self, place: _Place, entry: Entry, nbytes: int) -> None:
        self._place, self._entry = place, entry
        self._step = _Step(np.zeros(nbytes, np.uint8))

    def write(self, segment: Segment, data: Bytes) -> None:
        self._step.image[segment.offset : segment.offset + segment.nbytes] = data

    def seal(self, manifest: Manifest) -> None:
        self._step.manifest = encode(manifest)

    def commit(self, record: Record) -> Entry:
        self._step.record = record
        with self._place.lock:
            self._place.steps[self._entry] = self._step
        return self._entry

    def abort(self) -> None:
        self._step.image = np.empty(0, np.uint8)


class _Reader(StepReader):
    def __init__(self, step: _Step) -> None:
        self._step = step

    def manifest(self) -> Manifest:
        return decode(self._step.manifest)

    def read(self, extent: Extent, out: Bytes) -> None:
        found = self._step.image[extent.offset : extent.offset + len(out)]
        if len(found) < len(out):
            raise CorruptError(f"the image ends within the extent at {extent.offset}")
        out[:] = found

    def close(self) -> None:
        pass


class MemoryTier(Tier):
    """Steps in this process's memory, gone when it ends."""

    scheme = "memory"

    def __init__(self, location: str) -> None:
        super().__init__(location)
        with _places_lock:
            self._place = _places.setdefault(location, _Place())

    def begin(self, step: int, plan: Plan) -> StepWriter:
        """See `Tier.begin`."""
        with self._place.lock:
            generation = self._place.taken.get(step, -1) + 1
            self._place.taken[step] = generation
        try:
            return _Writer(self._place, Entry(step, generation), plan.nbytes)
        except MemoryError as error:
            raise StorageError(f"no memory for a step of {plan.nbytes} bytes") from error

    def entries(self) -> list[Entry]:
        """See `Tier.entries`."""
        with self._place.lock:
            return sorted(self._place.steps)

    def info(self, entry: Entry) -> Record:
        """See `Tier.info`."""
        record = self._find(entry).record
        assert record is not None, "a step without a record is not in the place"
        return record

    def open(self, entry: Entry) -> StepReader:
        """See `Tier.open`."""
        return _Reader(self._find(entry))

    def delete(self, entry: Entry) -> None:
        """See `Tier.delete`."""
        with self._place.lock:
            self._place.steps.pop(entry, None)

    def sweep(self) -> list[str]:
        """Nothing to do: what was not committed belongs to its writer alone."""
        return []

    def _find(self, entry: Entry) -> _Step:
        with self._place.lock:
            found = self._place.steps.get(entry)
        if found is None:
            raise StepNotFoundError(f"step {entry.step} is not in {self!r}", step=entry.step)
        return found
