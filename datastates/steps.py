"""The steps of a run, as the user sees them: which there are, what is known of them, which go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .catalog import Catalog
from .checks import check_choice, check_step
from .errors import UsageError
from .retention import Mode, Retention
from .tier import Tier
from .verification import VerifyReport, verify

__all__ = ["StepInfo", "Steps"]


@dataclass(frozen=True, slots=True)
class StepInfo:
    """A committed step, as the catalog knows it."""

    step: int
    path: str
    """Where it lies; `zarr.open` takes it for the tier `zarr`."""
    nbytes: int
    """Bytes of its values."""
    created: str
    """When it was committed: ISO 8601, UTC."""
    metrics: Mapping[str, float]
    metadata: Mapping[str, Any]


class Steps:
    """What a checkpointer offers about the steps that are there; it neither saves nor restores."""

    def __init__(self, tier: Tier, retention: Retention, timeout_s: float) -> None:
        self._tier, self._best, self._timeout_s = tier, retention.keep_best, timeout_s
        self._catalog = Catalog(tier, retention)

    def verify(
        self, step: int | None = None, *, progress: Callable[[int, int], None] | None = None
    ) -> VerifyReport:
        """Read every byte of a step (the newest by default) and check it; blocks until done.

        Raises:
            StepNotFoundError: it is not there.
            CorruptError: not even its manifest can be read.
        """
        entry = self._catalog.entry(self._existing(step))
        return verify(self._tier, entry, timeout_s=self._timeout_s, progress=progress)

    def steps(self) -> list[int]:
        """Return the committed steps, ascending."""
        return list(self._catalog.entries())

    def latest(self) -> int | None:
        """Return the highest committed step, or None where there is none."""
        newest = self._tier.newest()
        return None if newest is None else newest.step

    def best(self, metric: str | None = None, mode: Mode | None = None) -> int | None:
        """Return the best step by a metric; that of `keep_best` by default.

        Values that are not finite are never best; of equal ones the later step is. With no finite
        value at all the newest step is returned, with a warning.
        """
        default = self._best
        if metric is None and default is None:
            raise UsageError("best(): name a metric, or give keep_best to the Checkpointer")
        chosen = metric if metric is not None else default[0]  # type: ignore[index]
        chosen_mode = mode or (default[1] if default else "min")
        return self._catalog.best(chosen, check_choice("mode", chosen_mode, ("min", "max")))

    def info(self, step: int | None = None) -> StepInfo:
        """Return what is recorded of a step (the newest by default).

        Raises:
            StepNotFoundError: it is not there.
        """
        entry = self._catalog.entry(self._existing(step))
        fields = asdict(self._catalog.record(entry))
        return StepInfo(path=self._tier.where(entry), **fields)

    def delete(self, step: int) -> None:
        """Remove a step, whatever the retention rules say.

        Raises:
            StepNotFoundError: it is not there.
            StorageError: it could not be removed.
        """
        self._catalog.delete(check_step(step))

    def prune(self, *, dry_run: bool = False) -> list[int]:
        """Apply the retention rules now, sweep what dead savers left; return the steps removed."""
        entries = self._catalog.expired() if dry_run else self._catalog.prune()
        return [entry.step for entry in entries]

    def _existing(self, step: int | None) -> int:
        if step is not None:
            return check_step(step)
        return max(self._catalog.entries(), default=0)
