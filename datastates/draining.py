"""The saver's half of the pipeline: filled pieces of the arena into a tier, then the commit."""

from __future__ import annotations

from .arena import Arena, Region
from .job import Countdown, Job, kept_going
from .plan import Segment
from .tier import Entry, StepWriter, Tier
from .workers import Workers

__all__ = ["Drainer"]


class Drainer:
    """Takes one job at a time through begin, write, seal, and commit or abort."""

    def __init__(self, tier: Tier, arena: Arena, writers: int) -> None:
        self._tier, self._arena = tier, arena
        self._writers = Workers(writers, "datastates-write")

    def drain(self, job: Job) -> Entry | None:
        """Store a job; blocks until it is committed, or given up (None) with its error kept."""
        writer: StepWriter | None = None
        try:
            if not job.save._failed():
                writer = self._tier.begin(job.save.step, job.plan)
        except BaseException as error:
            job.fail(error)
        self._write_all(job, writer)
        return self._finish(job, writer) if writer is not None else None

    def _write_all(self, job: Job, writer: StepWriter | None) -> None:
        """Write pieces as they are filled, until there are no more, then wait for the writes."""
        writes = Countdown()
        while (filled := job.ready.get()) is not None:
            segment, region = filled
            if writer is None or job.save._failed():
                self._arena.release(region)
                continue
            writes.add()
            self._writers.submit(
                lambda s=segment, r=region: self._write(job, writer, s, r, writes)  # type: ignore[misc]
            )
        job.save._enter("writing")
        writes.wait()
        job.save._drained()

    def _write(
        self, job: Job, writer: StepWriter, segment: Segment, region: Region, writes: Countdown
    ) -> None:
        try:
            if not job.save._failed():
                writer.write(segment, region.data)
                job.save._wrote(segment.nbytes)
        except BaseException as error:
            job.fail(error)
        finally:
            self._arena.release(region)
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
            job.fail(error)
        with kept_going(f"giving up step {job.save.step}"):
            writer.abort()
        return None

    def discard(self, job: Job) -> None:
        """Give back the pieces of a job that has been staged and will not be stored."""
        while (filled := job.ready.get()) is not None:
            self._arena.release(filled[1])

    def close(self) -> None:
        """Let the threads go."""
        self._writers.close()
