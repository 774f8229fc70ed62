"""The pipeline: from the caller's memory through the arena into a tier, with bounded memory.

    caller ── plan ──▶ copiers ──▶ arena ──▶ writers ──▶ tier
      stalled here until copied │                │ seal, commit (saver thread)

The caller's thread asks the arena for one piece after the other, so a full arena is what holds
it back, and hands each to the copiers. The saver thread takes one save after the other, in the
order of the calls, gives its pieces to the writers as they are filled, and commits when all are
written. A save that fails anywhere gives its pieces back, is aborted in the tier, and is reported;
the next one starts from a clean place. That holds for whatever a provider or a tier raises, a
panic of a native extension (no `Exception`) too: a thread of ours that ended by it would take
every later save along.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

from .arena import Arena, Region
from .errors import ClosedError, SaveError, SaveTimeoutError
from .manifest import Manifest
from .plan import Plan, Segment
from .provider import ArrayLeaf
from .save import Save, SaveStatus
from .snapshot import Image
from .tier import Entry, Record, StepWriter, Tier
from .tree import Skeleton
from .workers import Workers

__all__ = ["Job", "Pipeline"]

log = logging.getLogger("datastates")


@contextmanager
def _kept_going(what: str) -> Iterator[None]:
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
    leaves: Sequence[ArrayLeaf]
    record: Callable[[], Record]
    """Makes the commit record, at the moment of the commit."""
    image: Image = field(init=False)
    ready: queue.SimpleQueue[tuple[Segment, Region] | None] = field(
        default_factory=queue.SimpleQueue
    )
    """Filled pieces for the saver; None ends them."""

    def __post_init__(self) -> None:
        self.image = Image(self.leaves, [array.grid for array in self.plan.arrays])
        self.leaves = ()

    def manifest(self) -> Manifest:
        """Return the manifest, once every extent is filled."""
        sums = self.image.checksums([array.extents for array in self.plan.arrays])
        return Manifest(self.plan.arrays, sums, self.skeleton, self.plan.nbytes)


class _Countdown:
    """Counts tasks that are out, and waits until all are back."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    def add(self) -> None:
        with self._changed:
            self._count += 1

    def done(self) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._count == 0, timeout_s)


class Pipeline:
    """Moves saves into one tier. `submit` is called by the trainer, everything else runs behind.

    Life: made once, `submit` for each save, `drain` and `close` at the end.
    """

    def __init__(
        self,
        tier: Tier,
        arena: Arena,
        committed: Callable[[Entry], None],
        *,
        copiers: int = 0,
        writers: int = 8,
        opened: Callable[[], object] = lambda: None,
        stall_timeout_s: float = 600.0,
        exit_timeout_s: float = 1800.0,
        watch_s: float = 60.0,
    ) -> None:
        """`opened` is called before the first save, `committed` after each commit; both behind."""
        self._tier, self._opened, self._committed = tier, opened, committed
        self.arena = arena
        """The staging memory; the pipeline's own."""
        self.durable = self.failed = 0
        """How many saves have ended, and how."""
        self._stall_timeout_s, self._exit_timeout_s = stall_timeout_s, exit_timeout_s
        self._watch_s = watch_s
        cores = len(os.sched_getaffinity(0))
        self._copiers = Workers(copiers or max(1, min(4, cores)), "datastates-copy")
        self._writers = Workers(writers, "datastates-write")
        self._staging = threading.Lock()
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._open: list[Save] = []
        self._closed = False
        for target, name in ((self._run, "datastates-save"), (self._watch, "datastates-watch")):
            threading.Thread(target=target, name=name, daemon=True).start()
        atexit.register(self._at_exit)

    # The caller's side.

    def submit(self, job: Job) -> None:
        """Copy the job's leaves into the arena and return; what is left goes on behind.

        Blocks while the arena is full, up to the stall timeout; the save fails then, and the
        caller goes on. Never raises for the storage's fault.

        Raises:
            ClosedError: the pipeline was closed.
        """
        if not self._staging.acquire(timeout=self._stall_timeout_s):
            error = SaveTimeoutError("another save has been copying all the time")
            self.refuse(job.save, error)
            return
        try:
            with self._changed:
                if self._closed:
                    raise ClosedError("this checkpointer is closed")
                self._open.append(job.save)
                self._jobs.append(job)
                self._changed.notify_all()
            self._stage(job)
        finally:
            self._staging.release()

    def refuse(self, save: Save, error: Exception) -> None:
        """End a save that cannot begin."""
        self._fail(save, error)
        save._returned()
        self._ended(save)

    def _stage(self, job: Job) -> None:
        """Fill the arena with the job's segments; whatever happens, the saver hears the end."""
        copies = _Countdown()
        try:
            job.save._enter("copying")
            self.arena.reserve(job.plan.nbytes)
            self._copy_all(job, copies)
            copies.wait()
        except Exception as error:
            self._fail(job.save, error)
        except BaseException:  # the caller's own: Ctrl-C while this blocks, for instance
            self._fail(job.save, SaveError("the call was interrupted"))
            raise
        finally:
            try:
                copies.wait()
            finally:
                job.image.drop_sources()
                job.save._returned()
                job.ready.put(None)

    def _copy_all(self, job: Job, copies: _Countdown) -> None:
        for segment in job.plan.segments:
            before = monotonic()
            region = self.arena.acquire(segment.nbytes, self._stall_timeout_s)
            job.save._waited(monotonic() - before)
            if job.save._failed():
                self.arena.release(region)
                return
            copies.add()
            self._copiers.submit(lambda s=segment, r=region: self._copy(job, s, r, copies))  # type: ignore[misc]

    def _copy(self, job: Job, segment: Segment, region: Region, copies: _Countdown) -> None:
        try:
            job.image.fill(segment, region.data)
            job.ready.put((segment, region))
        except BaseException as error:
            self._fail(job.save, error)
            self.arena.release(region)
        finally:
            copies.done()

    # The saver's side.

    def _run(self) -> None:
        with _kept_going("what precedes the first save"):
            self._opened()
        while (job := self._next()) is not None:
            self._save(job)
            self._ended(job.save)
            del job
        self._copiers.close()
        self._writers.close()
        self.arena.close()
        atexit.unregister(self._at_exit)

    def _next(self) -> Job | None:
        """Wait for the next job; None once the pipeline is closed and no save is under way."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            return self._jobs.popleft() if self._jobs else None

    def _ended(self, save: Save) -> None:
        save._end()
        with self._changed:
            if save in self._open:
                self._open.remove(save)
            self.failed += save._failed()
            self.durable += not save._failed()
            self._changed.notify_all()

    def _save(self, job: Job) -> None:
        writer: StepWriter | None = None
        try:
            writer = self._tier.begin(job.save.step, job.plan)
        except BaseException as error:
            self._fail(job.save, error)
        self._drain(job, writer)
        entry = self._finish(job, writer) if writer is not None else None
        if entry is not None:
            job.save._end()
            log.info("saved %s", job.save.stats)
            with _kept_going(f"what follows the commit of step {entry.step}"):
                self._committed(entry)

    def _drain(self, job: Job, writer: StepWriter | None) -> None:
        """Write pieces as they are filled, until there are no more, then wait for the writes."""
        writes = _Countdown()
        while (filled := job.ready.get()) is not None:
            segment, region = filled
            if writer is None or job.save._failed():
                self.arena.release(region)
                continue
            writes.add()
            self._writers.submit(
                lambda s=segment, r=region: self._write(job, writer, s, r, writes)  # type: ignore[misc]
            )
        job.save._enter("writing")
        writes.wait()

    def _write(
        self, job: Job, writer: StepWriter, segment: Segment, region: Region, writes: _Countdown
    ) -> None:
        try:
            if not job.save._failed():
                writer.write(segment, region.data)
                job.save._wrote(segment.nbytes)
        except BaseException as error:
            self._fail(job.save, error)
        finally:
            self.arena.release(region)
            writes.done()

    def _finish(self, job: Job, writer: StepWriter) -> Entry | None:
        try:
            if not job.save._failed():
                job.save._enter("sealing")
                writer.seal(job.manifest())
                job.save._enter("committing")
                entry = writer.commit(job.record())
                job.save._enter("durable")
                return entry
        except BaseException as error:
            self._fail(job.save, error)
        with _kept_going(f"giving up step {job.save.step}"):
            writer.abort()
        return None

    def _fail(self, save: Save, error: BaseException) -> None:
        if save._fail(error):
            log.error(
                "%s", save._error, exc_info=error if log.isEnabledFor(logging.DEBUG) else None
            )

    # Waiting, watching, closing.

    def _watch(self) -> None:
        """Say once a minute what stands still, and where."""
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._closed and not self._open, self._watch_s):
                    return
                stuck = [save for save in self._open if save._idle_s() > self._watch_s]
            for save in stuck[:1]:
                log.warning("%r has made no progress for %.0f s", save, save._idle_s())

    def in_flight(self) -> list[SaveStatus]:
        """Return where each save that has not ended stands, in order."""
        with self._changed:
            return [save.status for save in self._open]

    def drain(self, timeout_s: float | None) -> None:
        """Wait until no save is under way.

        Raises:
            SaveTimeoutError: there still is one; the message says where it stands.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._open, timeout_s):
                stuck = self._open[0]
                raise SaveTimeoutError(
                    f"{stuck!r} has not ended after {timeout_s:g} s", step=stuck.step
                )

    def stop(self) -> None:
        """Take no more saves, and let the threads go once those under way have ended."""
        with self._changed:
            if not self._closed:
                self._closed = True
                self._changed.notify_all()

    def close(self, timeout_s: float | None) -> None:
        """Take no more saves, and wait until those under way have ended.

        Raises:
            SaveTimeoutError: as `drain`; the threads go on in the background, as daemons.
        """
        self.stop()
        self.drain(timeout_s)

    def _at_exit(self) -> None:
        try:
            self.close(self._exit_timeout_s)
        except SaveTimeoutError as error:
            log.error("the interpreter ends before a save has: %s", error)
