"""The picture of a run: each contender's ratio to raw direct I/O, with the spread of the rounds."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from report import OURS, PACKED, YARDSTICK

_PANELS = {"save": "save until durable", "cold": "restore, cold", "warm": "restore, warm"}
_HIDDEN = (YARDSTICK, "torch.load mmap without copy")


def _limits(shown: Mapping[str, Mapping[str, float]]) -> tuple[float, float]:
    """Return whole decades around everything that is shown, and 1."""
    low = min(v["min"] for v in shown.values()) / 1.3
    high = max(1.0, *(v["max"] for v in shown.values())) * 1.3
    return 10.0 ** floor(log10(low)), 10.0 ** ceil(log10(high))


def _panel(axes: Any, found: Mapping[str, Any]) -> None:
    shown = {name: v["ratio_to_raw"] for name, v in found.items() if name not in _HIDDEN}
    names = sorted(shown, key=lambda name: shown[name]["median"])
    for y, name in enumerate(names):
        low, middle, high = (shown[name][k] for k in ("min", "median", "max"))
        color = "tab:blue" if name in (OURS, PACKED) else "tab:gray"
        axes.plot([low, high], [y, y], color=color, lw=6, alpha=0.35, solid_capstyle="round")
        axes.plot(middle, y, "o", color=color, ms=7)
        label = f"{middle:.2f}" if middle >= 0.1 else f"{middle:.2g}"
        axes.annotate(label, (middle, y), (0, 7), textcoords="offset points", ha="center")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.3)
    axes.axvline(1, color="black", lw=1)
    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(*_limits(shown))
    axes.grid(axis="x", which="both", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def draw(states: Mapping[str, Any], path: Path) -> None:
    """Draw a row for each state and a column for each phase into `path`."""
    figure = Figure(figsize=(14, 1 + 3.2 * len(states)))
    grid = figure.subplots(len(states), len(_PANELS), squeeze=False)
    for row, state in zip(grid, states.values(), strict=True):
        for axes, (phase, title) in zip(row, _PANELS.items(), strict=True):
            _panel(axes, state["summary"][phase])
            size = f"{state['tensors']} tensors, {state['nbytes'] / 2**20:.0f} MiB"
            axes.set_title(f"{title}\n{size}", fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel("rate / rate of raw direct I/O (bar: all rounds)")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
