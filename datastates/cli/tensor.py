"""`datastates show STEP TENSOR`: what the values of one array are like."""

from __future__ import annotations

from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from datastates.dtypes import numpy_dtype
from datastates.manifest import Array, Manifest
from datastates.reading import iterate
from datastates.tier import StepReader

from .arrays import as_json, chunks_text, shape_text
from .output import emit, emit_json, fields, progress, size_text, table
from .stats import Statistics, Summary

__all__ = ["show_tensor"]

_BINS = 16
_BAR = 40
_TIMEOUT_S = 600.0


def show_tensor(reader: StepReader, index: int, to_json: bool) -> None:
    """Read the array at `index` and write what it is like.

    An alias is a view of another array, whose values are what is described then.
    """
    manifest = reader.manifest()
    array = manifest.arrays[index]
    base = array.alias.base if array.alias is not None else index
    statistics = _read(reader, manifest, base)
    if to_json:
        emit_json(as_json(array, manifest) | asdict(statistics))
        return
    stored = manifest.arrays[base]
    emit(_header(array, stored), "", _numbers(statistics, array), "", _histogram(statistics))


def _read(reader: StepReader, manifest: Manifest, index: int) -> Statistics:
    array = manifest.arrays[index]
    dtype = numpy_dtype(array.dtype)
    summary = Summary(dtype)
    with progress(array.node) as advance:
        for run in iterate(reader, manifest, index, timeout_s=_TIMEOUT_S):
            summary.add(run.view(dtype))
            advance(len(run), array.nbytes)
    return summary.result(_BINS)


def _header(array: Array, stored: Array) -> Table:
    rows = {"array": array.node}
    if stored is not array:
        part = "" if array.nbytes == stored.nbytes else ", a part of it; the values are the whole's"
        rows["shares"] = f"→ {stored.node}{part}"
    rows |= {"type": array.dtype, "shape": shape_text(array)}
    rows |= {"size": size_text(array.nbytes)}
    return fields(rows | {"chunks": chunks_text(stored)})


def _numbers(found: Statistics, array: Array) -> Table:
    of = " of |z|" if array.dtype.startswith("complex") else ""
    rows = {"elements": f"{found.elements:,}"}
    for name in ("min", "max", "mean", "std"):
        value = getattr(found, name)
        rows[name + of] = "none" if value is None else _number(value)
    for name, count in (("NaN", found.nan), ("infinite", found.inf), ("zero", found.zeros)):
        share = f" ({100 * count / found.elements:.3g} %)" if count else ""
        rows[name] = f"{count:,}{share}"
    return fields(rows)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _histogram(found: Statistics) -> Table:
    most = max((b.count for b in found.histogram), default=0)
    made = table("from", "", "count", right=("from", "count"))
    made.show_header, made.box = False, None
    for bar in found.histogram:
        length = bar.count / most * _BAR
        text = "█" * int(length) + ("▌" if length % 1 >= 0.5 else "")
        if bar.count and not text:
            text = "▏"
        made.add_row(f"{bar.start:.4g}", Text(text, "cyan"), f"{bar.count:,}")
    return made
