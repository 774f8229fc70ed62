"""The picture of the simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from scale_facts import RUNS
from scale_study import INTERVALS, SHOWN, Engines, shown, stretched

_STYLES = {
    "synchronous": ("tab:gray", "s"),
    "eager copy": ("tab:orange", "^"),
    "lazy copy": ("tab:blue", "o"),
    "lazy + peer": ("tab:green", "D"),
}
"""Policy → color and marker."""
_LABELS = {
    "synchronous": "synchronous, writing as torch.save",
    "eager copy": "eager copy, writing as DCP async_save",
    "lazy copy": "lazy copy, writing as datastates",
    "lazy + peer": "the same, to a peer; each tenth to storage",
}
_LOOKS: dict[str, dict[str, Any]] = {
    "synchronous": {"ms": 7},
    "eager copy": {"ms": 7},
    "lazy copy": {"ms": 11, "mfc": "none", "mew": 1.8},
    "lazy + peer": {"ms": 5},
}
"""What lies on top of each other stays visible."""


def _plain(axes: Any) -> None:
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            axis.set_major_formatter("{x:g}")


def _by_run(axes: Any, rows: Sequence[Mapping[str, Any]], key: str, interval: int) -> None:
    for policy, (color, marker) in _STYLES.items():
        cells = {
            r["run"]: r[key] for r in rows if (r["policy"], r["interval"]) == (policy, interval)
        }
        values = [cells[run.name] for run in RUNS]
        axes.plot(values, marker, color=color, label=_LABELS[policy], **_LOOKS[policy])
    axes.set_xticks(range(len(RUNS)), [r.name.replace(" on ", "\n") for r in RUNS])
    axes.set_xlabel("parameters, and GPUs")
    axes.set_yscale("log")
    _plain(axes)


def _by_interval(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    for policy, (color, marker) in _STYLES.items():
        cells = {r["interval"]: r for r in rows if (r["policy"], r["run"]) == (policy, SHOWN)}
        values = [100 * (cells[i]["end_to_end"] - 1) for i in INTERVALS]
        axes.plot(range(len(INTERVALS)), values, marker + "-", color=color, **_LOOKS[policy])
    axes.set_xticks(range(len(INTERVALS)), [str(i) for i in INTERVALS])
    axes.set_xlabel("iterations from one save to the next")
    axes.set_yscale("log")
    _plain(axes)


def _stretched(axes: Any, engines: Engines) -> None:
    seconds = [0.05 * 1.15**n for n in range(45)]
    for interval, color in zip((1, 3, 10), ("tab:red", "tab:purple", "tab:blue"), strict=True):
        pairs = [stretched(s, interval, engines) for s in seconds]
        axes.plot(seconds, [lazy for _, lazy in pairs], color=color, label=f"lazy, each {interval}")
        axes.plot(seconds, [eager for eager, _ in pairs], color=color, ls=":", lw=1.2)
    run = shown()
    copy_s = run.work(1, 1).nbytes / run.rates(next(iter(engines.values()))).copy
    axes.axvline(copy_s, color="black", lw=0.8)
    axes.annotate(" copy = forward\n + backward", (copy_s, 0.05), fontsize=8)
    axes.plot([], [], color="gray", ls=":", label="eager, same interval")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("forward + backward, s")
    _plain(axes)


def draw(result: Mapping[str, Any], engines: Engines, path: Path) -> None:
    """Draw the stalls, the whole time, and where lazy copies stop helping."""
    figure = Figure(figsize=(13, 9))
    (one, ten), (whole, limit) = figure.subplots(2, 2)
    for axes, interval in ((one, 1), (ten, 10)):
        _by_run(axes, result["grid"], "stall_s", interval)
        each = "each iteration" if interval == 1 else f"each {interval} iterations"
        axes.set_title(f"Simulated stall of a save, {each}", fontsize=10)
        axes.set_ylabel("s")
    _by_interval(whole, result["grid"])
    whole.set_title(f"Time added, with all saves durable: {SHOWN}", fontsize=10)
    whole.set_ylabel("% of training alone")
    _stretched(limit, engines)
    limit.set_title(f"Where lazy copies stop helping: {SHOWN}, iteration stretched", fontsize=10)
    limit.set_ylabel("stall of a save, s")
    limit.legend(fontsize=8)
    figure.legend(*one.get_legend_handles_labels(), loc="upper center", ncols=4, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.96))
    figure.savefig(path, dpi=110)
