"""What of a checkpoint is wanted, and how it differs from the target it goes into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .names import Path

__all__ = ["Differences", "Selection"]


@dataclass(slots=True)
class Differences:
    """How a target and a checkpoint differ, as readable paths."""

    missing: list[str] = field(default_factory=list)
    """In the target, not in the checkpoint; left as they were."""
    unexpected: list[str] = field(default_factory=list)
    """In the checkpoint, not in the target; not read."""
    mismatched: list[str] = field(default_factory=list)
    """In both, with another shape, data type or kind; left as they were."""

    def as_tuples(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Return missing, unexpected and mismatched, frozen."""
        return tuple(self.missing), tuple(self.unexpected), tuple(self.mismatched)

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.mismatched)


class Selection:
    """The parts of a state that are wanted."""

    def __init__(self, parts: Sequence[Path] | None) -> None:
        self._parts = parts
        self.matched: set[Path] = set()
        """Those that were found."""

    def wants(self, path: Path) -> bool:
        """Tell whether anything at, above or below `path` is wanted."""
        if self._parts is None:
            return True
        hits = [p for p in self._parts if p[: len(path)] == path[: len(p)]]
        self.matched.update(p for p in hits if len(path) >= len(p))
        return bool(hits)

    def takes(self, path: Path) -> None:
        """Note that `path` is taken whole, with whatever is wanted below it."""
        self.matched.update(p for p in self._parts or () if p[: len(path)] == path)

    def whole(self, path: Path) -> bool:
        """Tell whether all below `path` is wanted."""
        return self._parts is None or any(path[: len(p)] == p for p in self._parts)

    def unmatched(self) -> list[Path]:
        """Return the wanted parts that were not met."""
        return [p for p in self._parts or () if p not in self.matched]
