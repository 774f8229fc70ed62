"""What a checkpointer keeps for its saves: the pipeline, the numbers, and unseen errors."""

from __future__ import annotations

import gc
import os
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from .arena import Arena, ArenaStatistics
from .catalog import Catalog
from .errors import ClosedError, DatastatesError, StorageError, UsageError
from .guard import Guard, Optimizer
from .job import Job
from .manifest import check_room
from .memory import available_nbytes
from .names import Path
from .pipeline import Busy, Pipeline
from .plan import Plan
from .planner import Planner
from .provider import ArrayLeaf
from .registry import Providers
from .save import Save, SaveStatus
from .tier import Record, Tier
from .tree import flatten

__all__ = ["SaveOptions", "Saver", "Statistics"]

_MIN_DEFAULT_ARENA_NBYTES = 64 << 20
_SLACK_NBYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a checkpointer is doing at this moment."""

    arena: ArenaStatistics
    in_flight: tuple[SaveStatus, ...]
    """Saves that have not ended, in order."""
    durable: int
    """Saves that were committed."""
    failed: int
    """Saves that were not, by a fault."""
    skipped: int
    """Saves that were given up, as `busy` asks."""


@contextmanager
def _no_collection() -> Iterator[None]:
    """Put garbage collections off: thousands of new objects start them, and all are still used."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@dataclass(frozen=True, slots=True)
class SaveOptions:
    """What the user has chosen for all saves; see `Checkpointer`."""

    arena_nbytes: int | None
    kept: int
    """How many steps retention keeps at least, to tell whether there is room."""
    stall_timeout_s: float
    exit_timeout_s: float
    busy: Busy = "wait"
    full_check: bool = False


class Saver:
    """Turns states into saves. The pipeline with its threads and arena is made at the first one."""

    def __init__(self, tier: Tier, catalog: Catalog, options: SaveOptions) -> None:
        if options.arena_nbytes is not None:
            Arena(options.arena_nbytes)  # refuses what is too small now, not at the first save
        self._tier, self._catalog, self._options = tier, catalog, options
        self._guard = Guard()
        weakref.finalize(self, self._guard.close)
        self._planner = Planner()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._pipeline: Pipeline | None = None
        self._saves: list[Save] = []
        self._taken = -1
        self._closed = self._warned = False

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    @property
    def elsewhere(self) -> bool:
        """True in a process that was forked from the one that made this."""
        return os.getpid() != self._pid

    def start(
        self,
        state: object,
        step: int | None,
        providers: Providers,
        metrics: Mapping[str, float],
        metadata: Mapping[str, Any],
        lazy: Sequence[Path] = (),
    ) -> Save:
        """Capture a state and leave the rest to the pipeline; see `Checkpointer.save_async`."""
        self._check_usable()
        started = monotonic()
        pipeline = self._open_pipeline()
        with _no_collection():
            flat = flatten(state, providers)
            plan = self._plan(flat.leaves, lazy, pipeline.arena.budget)
            packed = check_room(len(plan.arrays), plan.chunks, flat.skeleton)
        try:
            save = self._number(step, started)
        except StorageError as error:  # the storage cannot even tell the newest step
            save = self._add(Save(self._taken + 1, started))
            pipeline.refuse(save, error)
            return save
        save._planned(plan)
        number = save.step

        def record() -> Record:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            return Record(number, plan.payload, now, metrics, metadata)

        self._warn_space(plan.nbytes)
        leaves = [leaf for _, leaf in flat.leaves]
        full = self._options.full_check
        if self._options.arena_nbytes is None:
            pipeline.arena.limit(2 * plan.nbytes + _SLACK_NBYTES)
        pipeline.submit(Job(save, plan, flat.skeleton, leaves, record, full, packed))
        return save

    def _check_usable(self) -> None:
        if self._closed:
            raise ClosedError("this checkpointer is closed")
        self._check_process()

    def _check_process(self) -> None:
        if self.elsewhere:
            raise UsageError(
                "this checkpointer belongs to the process that made it: a forked one has none of "
                "its threads; make another there, for another location"
            )

    def _plan(
        self, leaves: Sequence[tuple[Path, ArrayLeaf]], vouched: Sequence[Path], arena_nbytes: int
    ) -> Plan:
        for save in self._saves:
            changed = save._changed()
            if changed is not None:
                self._guard.distrust(changed)
        with self._lock:
            return self._planner.plan(leaves, arena_nbytes, self._guard.lazy(leaves, vouched))

    def guard(self, optimizers: Sequence[Optimizer]) -> None:
        """See `Checkpointer.guard`."""
        self._check_usable()
        fence = weakref.WeakMethod(self.fence)

        def fence_if_alive() -> None:
            found = fence()
            if found is not None:
                found()

        for optimizer in optimizers:
            self._guard.add(optimizer, fence_if_alive)

    def fence(self, *, ended: bool = False) -> None:
        """See `Checkpointer.fence`; with `ended`, other threads and streams may change it, too."""
        if self._pipeline is not None and not self.elsewhere:
            self._pipeline.fence(ended=ended)

    def _number(self, step: int | None, started: float) -> Save:
        """Make the save, with the next free number unless one was asked for."""
        newest = self._tier.newest() if step is None else None
        with self._lock:
            if step is None:
                step = max(self._taken, -1 if newest is None else newest.step) + 1
            self._taken = max(self._taken, step)
        return self._add(Save(step, started))

    def _add(self, save: Save) -> Save:
        with self._lock:
            self._saves = [s for s in self._saves if not s.done() or s._has_unseen()]
            self._saves.append(save)
        return save

    def _open_pipeline(self) -> Pipeline:
        with self._lock:
            if self._pipeline is None:
                catalog = self._catalog  # bound, so that the pipeline does not keep `self` alive
                budget = max(_MIN_DEFAULT_ARENA_NBYTES, available_nbytes() // 4)
                self._pipeline = Pipeline(
                    self._tier,
                    Arena(self._options.arena_nbytes or budget),
                    catalog.committed,
                    opened=catalog.sweep,
                    stall_timeout_s=self._options.stall_timeout_s,
                    exit_timeout_s=self._options.exit_timeout_s,
                    busy=self._options.busy,
                )
                weakref.finalize(self, self._pipeline.stop)
            return self._pipeline

    def _warn_space(self, nbytes: int) -> None:
        """Say once, before the first save, that there is no room for what shall be kept."""
        if self._warned:
            return
        self._warned = True
        try:
            free = self._tier.free_nbytes()
        except DatastatesError:
            return
        states = self._options.kept + 1
        if free is not None and free < states * nbytes:
            warnings.warn(
                f"{self._tier!r} has {free / 1e9:.1f} GB free; keeping {states - 1} steps and "
                f"writing one more takes {states * nbytes / 1e9:.1f} GB",
                RuntimeWarning,
                stacklevel=4,
            )

    def statistics(self) -> Statistics:
        """See `Checkpointer.statistics`."""
        self._check_process()
        if self._pipeline is None:
            return Statistics(ArenaStatistics(0, 0, 0), (), 0, 0, 0)
        p = self._pipeline
        in_flight = tuple(p.in_flight())
        return Statistics(p.arena.statistics(), in_flight, p.durable, p.failed, p.skipped)

    def wait(self, timeout_s: float | None) -> None:
        """See `Checkpointer.wait`."""
        self.drain(timeout_s)
        self.raise_unseen()

    def drain(self, timeout_s: float | None) -> None:
        """Wait until every save has ended, well or not.

        Raises:
            SaveTimeoutError: one has not, after `timeout_s` seconds.
        """
        self._check_process()
        if self._pipeline is not None:
            self._pipeline.drain(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Take no more saves, and wait until those under way have ended."""
        self._closed = True
        self._guard.close()
        if self._pipeline is not None:
            self._pipeline.close(timeout_s)

    def raise_unseen(self) -> None:
        """Raise the errors of saves that nobody was told of; several as an `ExceptionGroup`."""
        with self._lock:
            errors = [error for save in self._saves if (error := save._unseen()) is not None]
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup(f"{len(errors)} saves failed", errors)
