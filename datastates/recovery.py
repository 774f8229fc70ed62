"""Restore: which step to take, and the state out of it.

The newest committed step is tried first. One that turns out damaged is reported and the one
before is taken; one that vanished (another process's retention) is not counted as damaged. A step
that was asked for by number is taken or refused, never replaced.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from .catalog import Catalog
from .errors import (
    CorruptError,
    MismatchError,
    StepNotFoundError,
    StorageTimeoutError,
    UsageError,
)
from .loader import StateLoader
from .manifest import Manifest
from .names import Path, readable
from .provider import Finish
from .reading import run_reads
from .reads import fill_inline, plan_reads
from .registry import Providers
from .selection import Differences, Selection
from .tier import Entry, StepReader, Tier
from .workers import within

__all__ = ["Recovery", "RestoreOptions", "opened", "restore"]


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """What a restore is asked for; see `Checkpointer.restore`."""

    into: Any = None
    only: tuple[Path, ...] | None = None
    strict: bool = True
    device: str | None = None
    trust: bool = False
    timeout_s: float = 600.0
    progress: Callable[[int, int], None] | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """What the last restore did."""

    step: int
    tier: str
    """Where the bytes came from."""
    nbytes: int
    """Bytes read."""
    seconds: float
    gb_per_s: float
    """`nbytes` over `seconds`, in 10^9 bytes a second."""
    missing: tuple[str, ...]
    """In the target, not in the checkpoint; left as they were."""
    unexpected: tuple[str, ...]
    """In the checkpoint, not in the target; not read."""
    mismatched: tuple[str, ...]
    """In both, but not the same kind, shape or data type; left as they were."""
    damaged: tuple[int, ...]
    """Newer steps that were passed over because they could not be read."""


def restore(
    tier: Tier,
    catalog: Catalog,
    providers: Providers,
    step: int | None,
    options: RestoreOptions,
) -> tuple[Any, Recovery]:
    """Restore a step, or the newest that can be read; return the state and what was done.

    Raises:
        StepNotFoundError: there is none, or not this one.
        CorruptError: it, or every one, is damaged. A target may be partly overwritten then.
        MismatchError: strict, and the target differs. The target is untouched.
    """
    if step is not None:
        entry = within(options.timeout_s, f"listing {tier!r}", lambda: catalog.entry(step))
        return _restore_entry(tier, entry, providers, options, ())
    damaged: list[int] = []
    last: CorruptError | None = None
    while True:
        entries = within(options.timeout_s, f"listing {tier!r}", catalog.entries)
        left = [entry for entry in entries.values() if entry.step not in damaged]
        if not left:
            raise last or StepNotFoundError(f"there is no checkpoint in {tier!r}")
        try:
            return _restore_entry(tier, left[-1], providers, options, tuple(damaged))
        except StepNotFoundError:
            continue  # removed meanwhile: look again
        except CorruptError as error:
            last = error
            catalog.mark_damaged(left[-1])
            damaged.append(left[-1].step)
            _warn_damaged([entry.step for entry in left], error)


def _open(tier: Tier, entry: Entry) -> tuple[StepReader, Manifest]:
    reader = tier.open(entry)
    try:
        return reader, reader.manifest()
    except BaseException:
        reader.close()
        raise


@contextmanager
def opened(tier: Tier, entry: Entry, timeout_s: float) -> Iterator[tuple[StepReader, Manifest]]:
    """Open a step; it is closed at the end unless a read may still be out.

    Such a read would otherwise go on in whatever file gets the descriptor next.
    """
    opening = partial(_open, tier, entry)
    reader, manifest = within(timeout_s, f"opening {tier.where(entry)}", opening)
    try:
        yield reader, manifest
    except (StorageTimeoutError, KeyboardInterrupt):
        raise
    except BaseException:
        reader.close()
        raise
    reader.close()


def _warn_damaged(newest: Sequence[int], error: CorruptError) -> None:
    then = f"falling back to step {newest[-2]}" if len(newest) > 1 else "and there is no older one"
    warnings.warn(f"step {newest[-1]} is damaged ({error}): {then}", RuntimeWarning, stacklevel=5)


def _restore_entry(
    tier: Tier,
    entry: Entry,
    providers: Providers,
    options: RestoreOptions,
    damaged: tuple[int, ...],
) -> tuple[Any, Recovery]:
    started = monotonic()
    with opened(tier, entry, options.timeout_s) as (reader, manifest):
        loader, finish = _prepare(manifest, providers, options)
        reads = plan_reads(manifest, loader.requests)
        nbytes = sum(read.nbytes for read in reads)
        told = _counter(options.progress, nbytes)
        run_reads(reader, manifest, reads, timeout_s=options.timeout_s, done=told)
    state = finish()
    seconds = monotonic() - started
    differences = loader.differences.as_tuples()
    rate = nbytes / seconds / 1e9
    where = tier.where(entry)
    return state, Recovery(entry.step, where, nbytes, seconds, rate, *differences, damaged)


def _prepare(
    manifest: Manifest, providers: Providers, options: RestoreOptions
) -> tuple[StateLoader, Finish]:
    """Decide where everything goes; fill in what the manifest itself holds."""
    selection = Selection(options.only)
    loader = StateLoader(
        manifest, providers, selection=selection, trusted=options.trust, device=options.device
    )
    finish = loader.child(manifest.skeleton, options.into)
    _check_selection(selection, manifest)
    _check_differences(loader.differences, options)
    fill_inline(manifest, loader.requests)
    return loader, finish


def _counter(progress: Callable[[int, int], None] | None, total: int) -> Callable[[int], None]:
    if progress is None:
        return lambda nbytes: None
    tell = progress
    return lambda nbytes: tell(nbytes, total)


def _check_selection(selection: Selection, manifest: Manifest) -> None:
    missing = selection.unmatched()
    if missing:
        known = sorted({array.node.partition("/")[0] for array in manifest.arrays})
        if isinstance(manifest.skeleton, dict):
            known = list(manifest.skeleton)
        names = ", ".join(readable(path) for path in missing)
        raise UsageError(f"only={names}: not in the checkpoint; its parts are: {', '.join(known)}")


def _check_differences(found: Differences, options: RestoreOptions) -> None:
    if found and options.strict:
        lines = [
            f"{what}: {', '.join(paths)}"
            for what, paths in (
                ("missing in the checkpoint", found.missing),
                ("unexpected in the checkpoint", found.unexpected),
                ("mismatched", found.mismatched),
            )
            if paths
        ]
        raise MismatchError(
            "the target and the checkpoint differ (strict=False restores what fits)\n  "
            + "\n  ".join(lines),
            missing=found.missing,
            unexpected=found.unexpected,
            mismatched=found.mismatched,
        )
