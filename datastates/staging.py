"""The caller's half of the pipeline: leaves into the arena, on copying threads of our own.

The caller asks the arena for one piece after the other, so a full arena is what holds it back, and
hands each to the copiers. Nothing here knows where the bytes go next.
"""

from __future__ import annotations

import os
from time import monotonic

from .arena import Arena, Region
from .errors import SaveError
from .job import Countdown, Job
from .plan import Segment
from .workers import Workers

__all__ = ["Stager"]


class Stager:
    """Fills the arena with one job after the other; the caller of `stage` is the one who waits."""

    def __init__(self, arena: Arena, stall_timeout_s: float, copiers: int = 0) -> None:
        self._arena, self._stall_timeout_s = arena, stall_timeout_s
        cores = len(os.sched_getaffinity(0))
        self._copiers = Workers(copiers or max(1, min(4, cores)), "datastates-copy")

    def stage(self, job: Job) -> None:
        """Fill the arena with the job's segments; whatever happens, the saver hears the end."""
        copies = Countdown()
        try:
            job.save._enter("copying")
            self._arena.reserve(job.plan.nbytes)
            self._copy_all(job, copies)
            copies.wait()
        except Exception as error:
            job.fail(error)
        except BaseException:  # the caller's own: Ctrl-C while this blocks, for instance
            job.fail(SaveError("the call was interrupted"))
            raise
        finally:
            try:
                copies.wait()
                job.image.drop_sources()
                job.save._returned()
            finally:
                job.ready.put(None)

    def _copy_all(self, job: Job, copies: Countdown) -> None:
        for segment in job.plan.segments:
            before = monotonic()
            region = self._arena.acquire(segment.nbytes, self._stall_timeout_s)
            job.save._waited(monotonic() - before)
            if job.save._failed():
                self._arena.release(region)
                return
            copies.add()
            self._copiers.submit(lambda s=segment, r=region: self._copy(job, s, r, copies))  # type: ignore[misc]

    def _copy(self, job: Job, segment: Segment, region: Region, copies: Countdown) -> None:
        try:
            job.image.fill(segment, region.data)
            job.ready.put((segment, region))
        except BaseException as error:
            job.fail(error)
            self._arena.release(region)
        finally:
            copies.done()

    def close(self) -> None:
        """Let the threads go."""
        self._copiers.close()
