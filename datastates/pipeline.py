"""The pipeline: from the caller's memory through the arena into a tier, with bounded memory.

    caller ── plan ──▶ copiers ──▶ arena ──▶ writers ──▶ tier
      stalled here only for           │                │ seal, commit (saver thread)
      what is not lazy

One save at a time is copied into the arena, so that what is needed to finish one is never lent to
the next. The saver thread takes one save after the other, in the order of the calls, gives its
pieces to the writers as they are filled, and commits when all are written. Old steps are removed
beside the next save.

A save that fails anywhere gives its pieces back, is aborted in the tier, and is reported; the next
one starts from a clean place. That holds for whatever a provider or a tier raises, a panic of a
native extension (no `Exception`) too: a thread of ours that ended by it would take every later
save along.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Literal

from .arena import Arena
from .draining import Drainer
from .errors import ClosedError, SaveError, SaveSkippedError, SaveTimeoutError
from .job import Job, kept_going
from .save import Save, SaveStatus
from .staging import Stager
from .tier import Entry, Tier
from .workers import Workers

__all__ = ["Busy", "Pipeline"]

Busy = Literal["wait", "skip", "supersede"]

log = logging.getLogger("datastates")


class Pipeline:
    """Moves saves into one tier. `submit` is called by the trainer, everything else runs behind.

    Life: made once, `submit` for each save, `drain` and `close` at the end.
    """

    def __init__(
        self,
        tier: Tier,
        arena: Arena,
        committed: Callable[[Entry, set[int]], object],
        *,
        copiers: int = 0,
        writers: int = 8,
        opened: Callable[[], object] = lambda: None,
        stall_timeout_s: float = 600.0,
        exit_timeout_s: float = 1800.0,
        watch_s: float = 60.0,
        busy: Busy = "wait",
    ) -> None:
        """Make the threads.

        Args:
            tier: where saves go.
            arena: the staging memory.
            committed: called behind after each commit, with what was committed and the steps that
                are not to be removed: those of all saves that have not ended.
            copiers: threads that copy; as many as cores, up to 4, by default.
            writers: writes outstanding at a time.
            opened: called behind, before the first save.
            stall_timeout_s: longest wait for room in the arena.
            exit_timeout_s: longest wait at interpreter exit.
            watch_s: seconds without progress after which a save is said to stand still.
            busy: what happens to a save that does not fit into the arena beside earlier ones:
                it waits, is skipped, or supersedes those that nobody has begun to store.
        """
        self._opened, self._committed = opened, committed
        self.arena = arena
        """The staging memory; the pipeline's own."""
        self.durable = self.failed = self.skipped = 0
        """How many saves have ended, and how."""
        self._stall_timeout_s, self._exit_timeout_s = stall_timeout_s, exit_timeout_s
        self._watch_s, self._busy = watch_s, busy
        self._pid = os.getpid()
        self._stager = Stager(arena, stall_timeout_s, copiers)
        self._drainer = Drainer(tier, arena, writers)
        self._janitor = Workers(1, "datastates-prune")
        self._following = threading.Semaphore(2)
        self._staging = threading.Semaphore()
        self._staged: Job | None = None
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._open: list[Save] = []
        self._closed = False
        for target, name in ((self._run, "datastates-save"), (self._watch, "datastates-watch")):
            threading.Thread(target=target, name=name, daemon=True).start()
        atexit.register(self._at_exit)

    # The caller's side.

    def submit(self, job: Job) -> None:
        """Capture the job's leaves and return; what is left goes on behind.

        Blocks while an earlier one is still being copied, and while the arena is full, up to the
        stall timeout; the save fails then, and the caller goes on. With another policy than
        `wait`, it is given up instead. Never raises for the storage's fault.

        Raises:
            ClosedError: the pipeline was closed.
        """
        if self._busy == "skip" and not self._fits(job):
            self.refuse(job.save, SaveSkippedError("earlier saves are still being stored"))
            return
        before = monotonic()
        if not self._staging.acquire(timeout=self._stall_timeout_s):
            error = SaveTimeoutError("another save has been copying all the time")
            self.refuse(job.save, error)
            return
        while self._busy == "supersede" and not self._fits(job) and self._give_up_oldest(job):
            pass
        try:
            job.save._waited(monotonic() - before)
            self._enqueue(job)
            self._stager.stage(job, self._staging.release)
        except BaseException as error:
            if not job.handed_on:
                self._abandon(job, error)
            raise

    def _enqueue(self, job: Job) -> None:
        with self._changed:
            if self._closed:
                raise ClosedError("this checkpointer is closed")
            self._jobs.append(job)
            self._open.append(job.save)
            self._staged = job
            self._changed.notify_all()

    def _abandon(self, job: Job, error: BaseException) -> None:
        """End a save whose call was interrupted, wherever that was, so that the next ones go on."""
        job.fail(error if isinstance(error, Exception) else SaveError("the call was interrupted"))
        job.save.exception()  # whoever is raised at need not be told again
        with self._changed:
            queued = job.save in self._open
            if not queued and job in self._jobs:
                self._jobs.remove(job)
        job.ready.put(None)
        job.staged.set()
        self._staging.release()
        if not queued:
            self._ended(job.save)

    def _fits(self, job: Job) -> bool:
        """Tell whether there is room for all of a state beside what is not stored yet."""
        copying = self._staged is not None and not self._staged.staged.is_set()
        room = self.arena.room_nbytes()
        return not copying and room >= min(job.plan.nbytes, self.arena.budget)

    def _give_up_oldest(self, newer: Job) -> bool:
        """End the first save that is whole in the arena and not being stored; False if none is."""
        with self._changed:
            found = next((job for job in self._jobs if job.staged.is_set()), None)
            if found is None:
                return False
            self._jobs.remove(found)
        found.fail(SaveSkippedError(f"superseded by the save of step {newer.save.step}"))
        self._drainer.discard(found)
        self._ended(found.save)
        return True

    def fence(self, *, ended: bool = False) -> None:
        """Wait until the caller may change what is lazy; see `Stager.fence`."""
        job = self._staged
        if job is not None and (job.lazy or ended) and not job.staged.is_set():
            self._stager.fence(job, ended=ended)

    def refuse(self, save: Save, error: Exception) -> None:
        """End a save that cannot begin."""
        save._fail(error)
        save._returned()
        self._ended(save)

    # The saver's side.

    def _run(self) -> None:
        with kept_going("what precedes the first save"):
            self._opened()
        while (job := self._next()) is not None:
            entry = self._drainer.drain(job)
            if entry is None:
                self._ended(job.save)
            else:
                job.save._end()
                log.info("saved %s", job.save.stats)
                self._follow(entry, job.save, job.plan.nbytes)
            del job
        self._janitor.submit(self.arena.close)  # behind what may still take memory for it
        self._janitor.close()
        self._stager.close()
        self._drainer.close()
        atexit.unregister(self._at_exit)

    def _next(self) -> Job | None:
        """Wait for the next job; None once the pipeline is closed and no save is under way."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            return self._jobs.popleft() if self._jobs else None

    def _follow(self, entry: Entry, save: Save, nbytes: int) -> None:
        """Do what follows a commit beside the next save, but at most one behind.

        Old steps go, and memory for as large a state is taken, so that the next call need not.
        """
        self._following.acquire()

        def follow() -> None:
            with kept_going(f"what follows the commit of step {entry.step}"):
                self._committed(entry, self._unended())
            self._following.release()
            self._ended(save)
            with kept_going("taking memory for the next save"):
                self.arena.prepare(nbytes)

        self._janitor.submit(follow)

    def _unended(self) -> set[int]:
        with self._changed:
            return {save.step for save in self._open}

    def _ended(self, save: Save) -> None:
        save._end()
        with self._changed:
            if save in self._open:
                self._open.remove(save)
            self.skipped += save._skipped()
            self.failed += save._failed() and not save._skipped()
            self.durable += not save._failed()
            self._changed.notify_all()

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
        """Take no more saves, and let the threads go once those under way have ended.

        In a forked process, which has neither, it does nothing: a lock may be held for ever there.
        """
        if os.getpid() != self._pid:
            return
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
        if os.getpid() != self._pid:
            return
        try:
            self.close(self._exit_timeout_s)
        except SaveTimeoutError as error:
            log.error("the interpreter ends before a save has: %s", error)
