"""The tables of a run, on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any

from report import Check
from rich.console import Console
from rich.table import Table
from stall_peers import PEERS
from stall_report import OURS

Summary = Mapping[str, Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True, slots=True)
class Column:
    """What a column of a table shows."""

    head: str
    figure: str
    factor: float = 1
    ranged: bool = True
    """Whether the range over the rounds is shown beside the median."""


_STALL = (
    Column("first s", "stall_first_s"),
    Column("at every 1 s", "stall_s@1"),
    Column("first included s", "stall_all_s@1"),
    Column("% of iteration", "stall_part@1", 100),
    Column("speed while saving", "speed@1"),
)
_STORAGE = (
    Column("persisted / raw", "persisted"),
    Column("GB/s", "persisted_gb_per_s", ranged=False),
    Column("CPU s/GiB", "cpu_s_per_gib", ranged=False),
    Column("extra MiB", "extra_nbytes", 2**-20, ranged=False),
    Column("cold / raw", "cold"),
    Column("GB/s", "cold_gb_per_s", ranged=False),
    Column("warm / memcpy", "warm"),
    Column("GB/s", "warm_gb_per_s", ranged=False),
)


def number(value: float) -> str:
    """Write a number with two digits that matter, or whole."""
    if not value:
        return "0"
    return f"{value:.{max(0, 1 - floor(log10(abs(value))))}f}"


def _cell(values: Mapping[str, float] | None, column: Column) -> str:
    if values is None:
        return "-"
    low, middle, high = (number(values[k] * column.factor) for k in ("min", "median", "max"))
    return f"{middle} ({low} to {high})" if column.ranged and low != high else middle


def _table(title: str, columns: Sequence[Column], summary: Summary) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(column.head, justify="right", no_wrap=True)
    for name, found in summary.items():
        cells = [_cell(found.get(column.figure), column) for column in columns]
        if any(cell != "-" for cell in cells):
            table.add_row(name, *cells, style="bold" if name in OURS else None)
    return table


def _intervals(summary: Summary, figure: str) -> list[Column]:
    found = {int(k.partition("@")[2]) for values in summary.values() for k in values if "@" in k}
    return [Column(f"every {k}", f"{figure}@{k}") for k in sorted(found)]


def _remarks() -> list[str]:
    """Return what is to know of single contenders."""
    syncs = [f"{name}: {peer.syncs}" for name, peer in PEERS.items() if peer.saves]
    remarks = [f"{name}: {peer.remark}" for name, peer in PEERS.items() if peer.remark]
    return [f"What each makes durable by itself: {'; '.join(syncs)}", *remarks]


def _tables(head: str, work: Mapping[str, Any]) -> list[Table]:
    summary: Summary = work["summary"]
    return [
        _table(f"{head}: seconds stalled per save (call and fence)", _STALL, summary),
        _table(
            f"{head}: seconds stalled per save, by interval",
            _intervals(summary, "stall_s"),
            summary,
        ),
        _table(
            f"{head}: iterations with all saves durable, over as many undisturbed ones",
            _intervals(summary, "end_to_end"),
            summary,
        ),
        _table(
            f"{head}: the same over the bound max(compute, bytes / raw rate)",
            _intervals(summary, "over_bound"),
            summary,
        ),
        _table(f"{head}: storing and restoring", _STORAGE, summary),
    ]


def show(
    works: Mapping[str, Any], notes: Sequence[str], write: Callable[[str], object], width: int = 150
) -> None:
    """Print the tables, who failed or did not run, the notes, the targets."""
    console = Console(width=width, highlight=False)
    for kind, work in works.items():
        raw = {key: number(values["median"]) for key, values in work["raw"].items()}
        head = f"{kind}, {work['nbytes'] / 2**20:.0f} MiB in {work['tensors']} tensors"
        for table in _tables(head, work):
            console.print(table)
        rates = ", ".join(f"{key} {rate}" for key, rate in raw.items())
        write(f"{kind}: raw rates in GB/s: {rates}; rounds: {len(work['rounds'])}")
        for name, why in work["failures"].items():
            write(f"{kind}: {name}: {why}")
    for note in [*notes, *_remarks()]:
        write(f"- {note}")
    for kind, work in works.items():
        for item in work["checks"]:
            write(f"{kind}: {Check(**item)}")
