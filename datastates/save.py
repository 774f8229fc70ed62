"""One save: its state while it is under way, and the handle that the user holds."""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass
from time import monotonic

from .errors import ChangedError, SaveError, SaveSkippedError, SaveTimeoutError
from .plan import Plan

__all__ = ["Save", "SaveStats", "SaveStatus"]

log = logging.getLogger("datastates")


@dataclass(frozen=True, slots=True)
class SaveStats:
    """What a save has cost so far; complete once it is done. Seconds count from the call."""

    step: int
    nbytes: int
    """Bytes of the state's values, each stored byte counted once."""
    lazy_nbytes: int
    """Of the image, what was copied after `save_async` had returned."""
    stalled_s: float
    """Seconds for which `save_async` kept the caller."""
    fenced_s: float
    """Seconds for which fences kept the caller, besides."""
    waited_s: float
    """Seconds spent waiting for an earlier save to be copied and for room in the arena, by
    whoever did: the caller, or what copies behind it."""
    planned_s: float | None
    """When the state was taken apart and planned; None before, as for the next ones."""
    staged_s: float | None
    """When all of it was in the arena."""
    drained_s: float | None
    """When all of it was handed to the tier."""
    durable_s: float | None
    """When the step was committed."""
    gb_per_s: float | None
    """`nbytes` over `durable_s`, in 10^9 bytes a second; None before."""

    def __str__(self) -> str:
        end = f", durable after {self.durable_s:.3f} s" if self.durable_s is not None else ""
        held = f"held the caller for {self.stalled_s + self.fenced_s:.3f} s"
        return f"step {self.step}: {self.nbytes / 1e6:.1f} MB, {held}{end}"


@dataclass(frozen=True, slots=True)
class SaveStatus:
    """Where a save stands at this moment."""

    step: int
    stage: str
    """`planned`, `copying`, `writing`, `sealing`, `committing`, `durable` or `failed`."""
    written_nbytes: int
    """Image bytes handed to the tier."""
    nbytes: int
    """Image bytes in all."""
    age_s: float
    """Seconds since the call."""


class Save:
    """A save in flight or at its end, as returned by `save_async`.

    Waiting never changes the outcome: a save goes on whether or not anyone waits for it. It is
    durable when `done()` is true and `result()` returns. A failed save is logged when it fails,
    and its error is raised by `result()`, by awaiting it, and by the checkpointer's `wait()` and
    `close()` if nobody has seen it until then.
    """

    def __init__(self, step: int, started: float | None = None) -> None:
        """`started` is the monotonic time of the call; now by default."""
        self.step = step
        """The step that is saved."""
        self._lock = threading.Lock()
        self._done: Future[None] = Future()
        self._done.set_running_or_notify_cancel()  # nobody who waits can cancel it
        self._stage = "planned"
        self._started = monotonic() if started is None else started
        self._ended: float | None = None
        self._error: SaveError | None = None
        self._seen = False
        self._nbytes = 0
        self._image_nbytes = 0
        self._written = 0
        self._lazy_nbytes = 0
        self._stalled_s = 0.0
        self._fenced_s = 0.0
        self._waited_s = 0.0
        self._marks: dict[str, float] = {}
        self._progress = self._started

    def __repr__(self) -> str:
        s = self.status
        return f"<Save step {s.step}: {s.stage}, {s.written_nbytes} of {s.nbytes} bytes written>"

    def done(self) -> bool:
        """Tell whether the save has ended: durable, or failed. Never blocks."""
        return self._done.done()

    def result(self, timeout: float | None = None) -> SaveStats:
        """Wait until the step is durable; return what it cost.

        Args:
            timeout: seconds to wait; None waits until the save ends.

        Raises:
            SaveTimeoutError: it has not ended by then; it goes on.
            SaveError: it failed, and its step does not exist; `__cause__` says why.
        """
        try:
            self._done.result(timeout)
        except TimeoutError:
            message = f"{self} has not ended after {timeout:g} s"
            raise SaveTimeoutError(message, step=self.step) from None
        error = self.exception()
        if error is not None:
            raise error
        return self.stats

    def exception(self) -> SaveError | None:
        """Return why the save failed, or None while it has not. Never blocks."""
        with self._lock:
            self._seen = self._seen or self._error is not None
            return self._error

    def __await__(self) -> Generator[object, None, SaveStats]:
        """Wait without blocking the event loop; as `result`. Cancelling ends the wait only."""
        yield from asyncio.wrap_future(self._done).__await__()
        return self.result()

    @property
    def stats(self) -> SaveStats:
        """What the save has cost so far."""
        with self._lock:
            ended = self._ended if self._error is None else None
            durable = ended - self._started if ended is not None else None
            return SaveStats(
                step=self.step,
                nbytes=self._nbytes,
                lazy_nbytes=self._lazy_nbytes,
                stalled_s=self._stalled_s,
                fenced_s=self._fenced_s,
                waited_s=self._waited_s,
                planned_s=self._marks.get("planned"),
                staged_s=self._marks.get("staged"),
                drained_s=self._marks.get("drained"),
                durable_s=durable,
                gb_per_s=self._nbytes / durable / 1e9 if durable else None,
            )

    @property
    def status(self) -> SaveStatus:
        """Where the save stands."""
        with self._lock:
            age = (self._ended or monotonic()) - self._started
            return SaveStatus(self.step, self._stage, self._written, self._image_nbytes, age)

    # What follows is for the pipeline, which alone makes and moves a save.

    def _enter(self, stage: str) -> None:
        with self._lock:
            if self._error is None:
                self._stage = stage
            self._progress = monotonic()

    def _planned(self, plan: Plan) -> None:
        with self._lock:
            self._nbytes, self._image_nbytes = plan.payload, plan.nbytes
            self._lazy_nbytes = sum(s.nbytes for s in plan.segments if s.lazy)
            self._mark("planned")

    def _mark(self, name: str) -> None:
        self._marks[name] = monotonic() - self._started

    def _staged(self) -> None:
        with self._lock:
            self._mark("staged")

    def _drained(self) -> None:
        with self._lock:
            self._mark("drained")

    def _fenced(self, seconds: float) -> None:
        with self._lock:
            self._fenced_s += seconds

    def _wrote(self, nbytes: int) -> None:
        with self._lock:
            self._written += nbytes
            self._progress = monotonic()

    def _waited(self, seconds: float) -> None:
        with self._lock:
            self._waited_s += seconds

    def _returned(self) -> None:
        with self._lock:
            self._stalled_s = monotonic() - self._started

    def _fail(self, error: BaseException) -> None:
        """Keep the first error, and log it; later ones change nothing."""
        with self._lock:
            if self._error is not None:
                return
            message = f"the save of step {self.step} failed while {self._stage}: {error}"
            self._error = _kind(error)(message, step=self.step)
            self._error.__cause__ = error
            self._stage = "failed"
        level = logging.WARNING if isinstance(error, SaveSkippedError) else logging.ERROR
        debug = error if log.isEnabledFor(logging.DEBUG) else None
        log.log(level, "%s", message, exc_info=debug)

    def _failed(self) -> bool:
        with self._lock:
            return self._error is not None

    def _changed(self) -> str | None:
        """Return which tensor changed before it was copied, where that is why it failed."""
        with self._lock:
            cause = None if self._error is None else self._error.__cause__
        return cause.key if isinstance(cause, ChangedError) else None

    def _skipped(self) -> bool:
        with self._lock:
            return self._is_skip()

    def _end(self) -> None:
        with self._lock:
            if self._ended is not None:
                return
            self._ended = monotonic()
            error: BaseException | None = self._error
        while error is not None:  # an error that is kept must not keep the memory it met
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__
        self._done.set_result(None)

    def _idle_s(self) -> float:
        with self._lock:
            return monotonic() - self._progress

    def _has_unseen(self) -> bool:
        with self._lock:
            return self._error is not None and not self._seen and not self._is_skip()

    def _is_skip(self) -> bool:
        return isinstance(self._error, SaveSkippedError)

    def _unseen(self) -> SaveError | None:
        """Return an error that nobody was given yet, and count it as given."""
        with self._lock:
            if self._seen or self._is_skip():
                return None  # whoever asked for `busy` was not promised every save
            self._seen = self._error is not None
            return self._error


def _kind(error: BaseException) -> type[SaveError]:
    if isinstance(error, SaveSkippedError):
        return SaveSkippedError
    return SaveTimeoutError if isinstance(error, TimeoutError) else SaveError
