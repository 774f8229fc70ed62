"""Verify: every byte of a step read and checked, also what only other readers use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .errors import CorruptError
from .reading import run_reads
from .reads import ExtentRead, extents_of
from .recovery import opened
from .tier import Damage, Entry, Tier

__all__ = ["VerifyReport", "verify"]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What reading a whole step found."""

    step: int
    nbytes: int
    """Bytes of values read and found right."""
    arrays: int
    damaged: tuple[Damage, ...]
    """What is missing, short or wrong."""

    @property
    def ok(self) -> bool:
        """True where every byte is as it was saved."""
        return not self.damaged


def verify(
    tier: Tier,
    entry: Entry,
    *,
    timeout_s: float,
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Read every byte of a step, stored padding and checksums too, and report what is damaged.

    Beside the extents it checks what the tier keeps for other readers, such as Zarr metadata.

    Raises:
        StepNotFoundError: it is not there.
        CorruptError: its manifest cannot be read, so nothing else can be told.
    """
    with opened(tier, entry, timeout_s) as (reader, manifest):
        total = sum(a.nbytes for a in manifest.arrays if a.extents)
        damaged, nbytes = reader.problems(), 0
        for index, array in enumerate(manifest.arrays):
            reads = [
                ExtentRead(extent, size, padding, stored=True)
                for extent, _, size, padding in extents_of(manifest, index)
            ]
            try:
                run_reads(reader, manifest, reads, timeout_s=timeout_s)
            except CorruptError as error:
                damaged.append(Damage(array.node, str(error).removeprefix(f"{array.node}: ")))
                continue
            if reads:
                nbytes += array.nbytes
                if progress is not None:
                    progress(array.nbytes, total)
    return VerifyReport(entry.step, nbytes, len(manifest.arrays), tuple(damaged))
