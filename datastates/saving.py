"""What a checkpointer keeps for its saves: the pipeline, the numbers, and unseen errors."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from .arena import Arena, ArenaStatistics
from .catalog import Catalog
from .errors import ClosedError, DatastatesError, StorageError
from .job import Job
from .manifest import check_room
from .memory import available_nbytes
from .pipeline import Pipeline
from .plan import make_plan
from .registry import Providers
from .save import Save, SaveStatus
from .tier import Record, Tier
from .tree import flatten

__all__ = ["Saver", "Statistics"]

_MIN_DEFAULT_ARENA_NBYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a checkpointer is doing at this moment."""

    arena: ArenaStatistics
    in_flight: tuple[SaveStatus, ...]
    """Saves that have not ended, in order."""
    durable: int
    """Saves that were committed."""
    failed: int
    """Saves that were not."""


class Saver:
    """Turns states into saves. The pipeline with its threads and arena is made at the first one."""

    def __init__(
        self,
        tier: Tier,
        catalog: Catalog,
        *,
        arena_nbytes: int | None,
        kept: int,
        stall_timeout_s: float,
        exit_timeout_s: float,
    ) -> None:
        """`kept` is how many steps retention keeps at least, to tell whether there is room."""
        if arena_nbytes is not None:
            Arena(arena_nbytes)  # refuses what is too small, now rather than at the first save
        self._tier, self._catalog = tier, catalog
        self._arena_nbytes, self._kept = arena_nbytes, kept
        self._stall_timeout_s, self._exit_timeout_s = stall_timeout_s, exit_timeout_s
        self._lock = threading.Lock()
        self._pipeline: Pipeline | None = None
        self._saves: list[Save] = []
        self._taken = -1
        self._closed = self._warned = False

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    def start(
        self,
        state: object,
        step: int | None,
        providers: Providers,
        metrics: Mapping[str, float],
        metadata: Mapping[str, Any],
    ) -> Save:
        """Capture a state and leave the rest to the pipeline; see `Checkpointer.save_async`."""
        if self._closed:
            raise ClosedError("this checkpointer is closed")
        started = monotonic()
        pipeline = self._open_pipeline()
        flat = flatten(state, providers)
        plan = make_plan(flat.leaves, pipeline.arena.budget)
        check_room(plan.arrays, flat.skeleton)
        try:
            save = self._number(step, started)
        except StorageError as error:  # the storage cannot even tell the newest step
            save = self._add(Save(self._taken + 1, started))
            pipeline.refuse(save, error)
            return save
        save._planned(plan.payload, plan.nbytes)
        number = save.step

        def record() -> Record:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            return Record(number, plan.payload, now, metrics, metadata)

        self._warn_space(plan.nbytes)
        pipeline.submit(Job(save, plan, flat.skeleton, [leaf for _, leaf in flat.leaves], record))
        return save

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
                    Arena(self._arena_nbytes or budget),
                    catalog.committed,
                    opened=catalog.sweep,
                    stall_timeout_s=self._stall_timeout_s,
                    exit_timeout_s=self._exit_timeout_s,
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
        states = self._kept + 1
        if free is not None and free < states * nbytes:
            warnings.warn(
                f"{self._tier!r} has {free / 1e9:.1f} GB free; keeping {states - 1} steps and "
                f"writing one more takes {states * nbytes / 1e9:.1f} GB",
                RuntimeWarning,
                stacklevel=4,
            )

    def statistics(self) -> Statistics:
        """See `Checkpointer.statistics`."""
        if self._pipeline is None:
            return Statistics(ArenaStatistics(0, 0, 0), (), 0, 0)
        p = self._pipeline
        return Statistics(p.arena.statistics(), tuple(p.in_flight()), p.durable, p.failed)

    def wait(self, timeout_s: float | None) -> None:
        """See `Checkpointer.wait`."""
        if self._pipeline is not None:
            self._pipeline.drain(timeout_s)
        self.raise_unseen()

    def close(self, timeout_s: float) -> None:
        """Take no more saves, and wait until those under way have ended."""
        self._closed = True
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
