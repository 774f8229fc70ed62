"""Which steps are kept, and which is best: pure policies over what the commit records say."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .errors import UsageError

__all__ = ["Candidate", "Retention", "rank_best"]

Mode = Literal["min", "max"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A committed step, as a policy sees it."""

    step: int
    metrics: Mapping[str, float]


def rank_best(steps: Sequence[Candidate], metric: str, mode: Mode) -> list[int]:
    """Return the steps by `metric`, best first; of equal ones the later step comes first.

    Values that are not finite, and steps without the metric, are never best and left out.
    """
    sign = 1.0 if mode == "min" else -1.0
    scored = [
        (sign * value, -c.step)
        for c in steps
        if (value := c.metrics.get(metric)) is not None and math.isfinite(value)
    ]
    return [-step for _, step in sorted(scored)]


@dataclass(frozen=True, slots=True)
class Retention:
    """Rules for what stays. A step stays if any rule keeps it; the newest always does."""

    keep_last: int | None = None
    """The newest n steps. With no rule at all, everything stays."""
    keep_every: int | None = None
    """Every step that is a multiple of n."""
    keep_best: tuple[str, Mode, int] | None = None
    """Metric, `min` or `max`, and how many."""

    def __post_init__(self) -> None:
        for name in ("keep_last", "keep_every"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise UsageError(f"{name} must be a whole number from 1, not {value!r}")
        best = self.keep_best
        if best is not None and not (
            isinstance(best, tuple)
            and len(best) == 3
            and isinstance(best[0], str)
            and best[1] in ("min", "max")
            and type(best[2]) is int
            and best[2] >= 1
        ):
            raise UsageError(f'keep_best must be like ("loss", "min", 2), not {best!r}')

    def expired(self, steps: Sequence[Candidate], spared: Collection[int] = ()) -> list[int]:
        """Return the steps that no rule keeps, oldest first.

        Args:
            steps: all committed steps that are not known to be damaged.
            spared: steps that stay whatever the rules say.
        """
        if self.keep_last is None and self.keep_every is None and self.keep_best is None:
            return []
        ordered = sorted(c.step for c in steps)
        kept = {*ordered[-(self.keep_last or 1) :], *spared}
        if self.keep_every is not None:
            kept.update(step for step in ordered if step % self.keep_every == 0)
        if self.keep_best is not None:
            metric, mode, count = self.keep_best
            kept.update(rank_best(steps, metric, mode)[:count])
        return [step for step in ordered if step not in kept]
