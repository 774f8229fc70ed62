"""The first half of the pipeline: leaves into the arena, on copying threads of our own.

What is not lazy is copied, or queued on its device, while the caller waits: it asks the arena for
one piece after the other, so a full arena is what holds it back. What is lazy follows on a thread
of ours. The fence is where the caller waits for that: for copies of host memory to end, for copies
of devices to be queued, for storage only where the arena is too small to take all of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic

from .arena import Arena, Region
from .device import Event
from .errors import SaveError, SaveTimeoutError
from .job import Countdown, Job, kept_going
from .plan import Segment
from .workers import Workers

__all__ = ["Stager"]

_FEW = 32
"""Extents in a segment from which on they are too small for threads."""


class Stager:
    """Fills the arena with one job after the other; never with two at once."""

    def __init__(self, arena: Arena, stall_timeout_s: float, copiers: int = 0) -> None:
        self._arena, self._stall_timeout_s = arena, stall_timeout_s
        cores = len(os.sched_getaffinity(0))
        self._copiers = Workers(copiers or max(1, min(4, cores)), "datastates-copy")
        self._receivers = Workers(2, "datastates-receive")  # who waits for devices copies nothing
        self._behind = Workers(1, "datastates-stage")

    def stage(self, job: Job, ended: Callable[[], None]) -> None:
        """Capture a job and fill the arena with what cannot wait; the rest follows behind.

        `ended` is called once nothing of the job will touch the caller's memory any more. Whatever
        happens, the saver hears the end.
        """
        host, device = Countdown(), Countdown()
        try:
            job.save._enter("copying")
            job.capture()
            for each in job.image.devices:
                self._arena.pin_for(each)
            self._fill(job, (s for s in job.plan.segments if not s.lazy), host, device)
            job.image.hold_devices()
            host.wait()
            job.image.drop_copied()
        except Exception as error:
            job.fail(error)
        except BaseException:  # the caller's own: Ctrl-C while this blocks, for instance
            job.fail(SaveError("the call was interrupted"))
            raise
        finally:
            try:
                host.wait()
                job.save._returned()
            finally:
                job.handed_on = True
                self._behind.submit(lambda: self._follow(job, host, device, ended))

    def _follow(
        self, job: Job, host: Countdown, device: Countdown, ended: Callable[[], None]
    ) -> None:
        """Stage what is lazy; runs behind the caller."""
        try:
            self._fill(job, (s for s in job.plan.segments if s.lazy), host, device)
        except BaseException as error:
            job.fail(error)
        with kept_going(f"staging step {job.save.step}"):
            host.wait()
            job.settled.set()
            device.wait()
            job.image.drop_sources()
            job.save._staged()
        job.ready.put(None)
        job.staged.set()
        ended()

    def _fill(
        self, job: Job, segments: Iterable[Segment], host: Countdown, device: Countdown
    ) -> None:
        for segment in segments:
            if job.save._failed():
                return
            before = monotonic()
            region = self._arena.acquire(segment.nbytes, self._stall_timeout_s)
            job.save._waited(monotonic() - before)
            try:
                copied = job.image.begin(segment, region.data)
            except BaseException:
                self._arena.release(region)
                raise
            out = host if copied is None else device
            out.add()
            copy = partial(self._copy, job, segment, region, copied, out)
            if copied is None and len(segment.extents) > _FEW:
                copy()  # mostly Python's work, over which threads would only fight
            else:
                (self._copiers if copied is None else self._receivers).submit(copy)

    def _copy(
        self, job: Job, segment: Segment, region: Region, copied: Event | None, out: Countdown
    ) -> None:
        try:
            if copied is None and job.save._failed():
                self._arena.release(region)
                return
            job.image.finish(segment, region.data, copied)
            job.ready.put((segment, region))
        except BaseException as error:
            job.fail(error)
            self._arena.release(region)
        finally:
            out.done()

    def fence(self, job: Job, *, ended: bool = False) -> None:
        """Wait until the caller may change what is lazy in a job; the save's faults stay its own.

        With `ended`, until all is copied, so that any thread and stream may. A save that does not
        get there by the deadline fails, and the caller goes on.
        """
        before = monotonic()
        late: Exception | None = None
        if not (job.staged if ended else job.settled).wait(self._stall_timeout_s):
            where = f"after {self._stall_timeout_s:g} s at the fence: the tiers do not drain"
            late = SaveTimeoutError(f"not copied {where} the arena")
        job.image.settle(job.fail, late)
        job.save._fenced(monotonic() - before)

    def close(self) -> None:
        """Let the threads go."""
        self._copiers.close()
        self._receivers.close()
        self._behind.close()
