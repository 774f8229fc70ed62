"""What the simulation found, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from scale_facts import FIGURES, NOT_FOUND, POLICIES, RUNS
from scale_study import INTERVALS, SHOWN, Check

_GB = 1e9


def number(value: float) -> str:
    """Return three digits, or fewer."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for at, head in enumerate(heads):
        table.add_column(head, justify="right" if at else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _inputs() -> Table:
    rows = [(name, f"{f.value:.4g}", f.unit, f.kind, f.source) for name, f in FIGURES.items()]
    return _table("Inputs", ("", "value", "unit", "kind", "source"), rows)


def _checks(found: Sequence[Check]) -> Table:
    def row(c: Check) -> Sequence[str]:
        wide = c.low is not None
        simulated = f"{number(c.low)} to {number(c.simulated)}" if wide else number(c.simulated)
        ratio = "" if wide else f"{c.ratio:.2f}"
        verdict = ("in range" if wide else f"within {c.factor:g}x") if c.agrees else "DIFFERS"
        return c.what, c.unit, number(c.published), simulated, ratio, verdict, c.words

    heads = ("", "unit", "published", "simulated", "ratio", "", "in words")
    return _table("Published and simulated", heads, [row(c) for c in found])


def _by_policy(rows: Sequence[Mapping[str, Any]], title: str, key: str, interval: int) -> Table:
    cells = {(r["run"], r["policy"]): r for r in rows if r["interval"] == interval}

    def row(run: str) -> Sequence[str]:
        first = cells[run, "lazy copy"]
        values = [number(cells[run, p][key]) for p in POLICIES]
        size, seconds = first["nbytes_per_gpu"] / _GB, first["iteration_s"]
        return run, number(size), number(seconds), *values, first["bound"]

    heads = ("", "GB per GPU", "iteration s", *POLICIES, "lazy is bound by")
    return _table(f"{title}; a save each {interval}", heads, [row(r.name) for r in RUNS])


def _limits(rows: Sequence[Mapping[str, Any]]) -> Table:
    keys = ("iteration_s", "window_s", "copy_s", "flush_s", "send_s", "shortest_interval")
    heads = ("", "iteration", "forward + backward", "copy", "flush", "to a peer", "least interval")
    title = "Seconds of one GPU's part, alone; least interval that storage bears"
    cells = [(r["run"], *(number(r[k]) for k in keys)) for r in rows]
    return _table(title, heads, cells)


def _same_writer(rows: Sequence[Mapping[str, Any]]) -> Table:
    cells = {(r["run"], r["interval"]): r for r in rows}

    def pair(run: str, interval: int) -> str:
        found = cells[run, interval]
        return " / ".join(number(found[f"{name}_stall_s"]) for name in ("eager", "lazy"))

    lines = [(run.name, *(pair(run.name, i) for i in INTERVALS)) for run in RUNS]
    heads = ("", *(f"each {i}" for i in INTERVALS))
    return _table("Stall of a save, s, eager / lazy, both writing as datastates", heads, lines)


def _arenas(rows: Sequence[Mapping[str, Any]]) -> Table:
    cells = {(r["states"], r["interval"]): number(r["stall_s"]) for r in rows}
    sizes = list(dict.fromkeys(r["states"] for r in rows))
    heads = ("arena, in states", *(f"each {i}" for i in INTERVALS))
    lines = [(number(s), *(cells[s, i] for i in INTERVALS)) for s in sizes]
    return _table(f"Stall of a lazy save, s: {SHOWN}, by interval", heads, lines)


def show(result: Mapping[str, Any], found: Sequence[Check]) -> None:
    """Print everything."""
    console = Console(width=170, highlight=False)
    console.print(_inputs())
    console.print(_checks(found))
    for interval in (1, 10):
        for title, key in (
            ("Stall of a save, s", "stall_s"),
            ("End to end, all durable, to training alone", "end_to_end"),
            ("Work lost with a node, mean, s", "lost_s"),
        ):
            console.print(_by_policy(result["grid"], title, key, interval))
    console.print(_limits(result["limits"]))
    console.print(_same_writer(result["same_writer"]))
    console.print(_arenas(result["arenas"]))
    for missing in NOT_FOUND:
        console.print(f"- not found: {missing}")
