"""A save under way, as the halves of the pipeline hand it on."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field

from .arena import Region
from .manifest import Manifest
from .plan import Plan, Segment
from .provider import ArrayLeaf
from .save import Save
from .snapshot import Image
from .tier import Record
from .tree import Skeleton

__all__ = ["Countdown", "Job", "kept_going"]

log = logging.getLogger("datastates")


@contextmanager
def kept_going(what: str) -> Iterator[None]:
    """Log what may not fail and does: a tier that breaks its promise must not end the saver."""
    try:
        yield
    except BaseException:
        log.exception("%s failed", what)


@dataclass(slots=True)
class Job:
    """A save that is under way, with all it takes along."""

    save: Save
    plan: Plan
    skeleton: Skeleton
    leaves: InitVar[Sequence[ArrayLeaf]]
    record: Callable[[], Record]
    """Makes the commit record, at the moment of the commit."""
    full: bool = False
    """Read the lazy leaves whole, in the call, to tell whether they change."""
    packed: bytes | None = None
    """The skeleton as msgpack, where it is there already."""
    image: Image = field(init=False)
    settled: threading.Event = field(default_factory=threading.Event)
    """Set once the caller may change what is lazy: it is copied, or queued on its device."""
    handed_on: bool = False
    """True once the thread that follows the call has been asked to end its staging."""
    staged: threading.Event = field(default_factory=threading.Event)
    """Set once all is in the arena, or nothing more will be."""
    ready: queue.SimpleQueue[tuple[Segment, Region] | None] = field(
        default_factory=queue.SimpleQueue
    )
    """Filled pieces for the saver; None ends them."""

    def __post_init__(self, leaves: Sequence[ArrayLeaf]) -> None:
        self.image = Image(self.plan, leaves)

    @property
    def lazy(self) -> bool:
        """True where something is copied after the call."""
        return any(segment.lazy for segment in self.plan.segments)

    def capture(self) -> None:
        """Note how things stand in the call; see `Image.capture`."""
        lazy = {extent.array for s in self.plan.segments if s.lazy for extent in s.extents}
        self.image.capture(lazy, full=self.full)

    def fail(self, error: BaseException) -> None:
        """End the save with its first error, and say so; later ones change nothing."""
        self.save._fail(error)
        self.settled.set()

    def manifest(self) -> Manifest:
        """Return the manifest, once every extent is filled."""
        sums, arrays = self.image.checksums(), self.plan.arrays
        return Manifest(arrays, sums, self.skeleton, self.plan.nbytes, packed=self.packed)


class Countdown:
    """Counts tasks that are out, and waits until all are back."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    def add(self) -> None:
        """Count one more out."""
        with self._changed:
            self._count += 1

    def done(self) -> None:
        """Count one back."""
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def wait(self) -> None:
        """Block until all are back: what is counted has deadlines of its own, or is the storage."""
        with self._changed:
            self._changed.wait_for(lambda: self._count == 0)
