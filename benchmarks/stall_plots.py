"""The pictures of a run: stalls, end-to-end time by interval, training speed while saving."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from stall_peers import PEERS
from stall_report import OURS, UNDISTURBED
from stall_tables import number

Works = Mapping[str, Any]
_MARKS = "osDv^<>PX*hd"
_LOOKS = (("tab:blue", 6), ("tab:orange", -13))
"""Color of a figure, and how many points above its mark the number stands."""


def _title(kind: str, work: Mapping[str, Any], what: str) -> str:
    size = f"{work['nbytes'] / 2**20:.0f} MiB in {work['tensors']} tensors"
    iteration = work["summary"].get(UNDISTURBED, {}).get("iteration_s")
    length = f", iteration {iteration['median']:.2f} s" if iteration else ""
    return f"{what}\n{kind}: {size}{length}"


def _bars(axes: Any, summary: Mapping[str, Any], figures: Mapping[str, str], names: Any) -> None:
    """Draw a row for each contender: range and median of each figure."""
    for y, name in enumerate(names):
        for (figure, label), (color, above) in zip(figures.items(), _LOOKS, strict=False):
            values = summary[name].get(figure)
            if values is None:
                continue
            low, middle, high = (max(values[k], 1e-6) for k in ("min", "median", "max"))
            axes.plot([low, high], [y, y], color=color, lw=6, alpha=0.35, solid_capstyle="round")
            axes.plot(middle, y, "o", color=color, label=label if not y else None)
            axes.annotate(
                number(middle),
                (middle, y),
                (0, above),
                textcoords="offset points",
                ha="center",
                size=8,
            )
    axes.set_yticks(range(len(names)), names)
    for tick, name in zip(axes.get_yticklabels(), names, strict=True):
        tick.set_fontweight("bold" if name in OURS else "normal")
    axes.set_ylim(-0.6, len(names) - 0.3)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _stall(axes: Any, work: Mapping[str, Any]) -> str:
    summary = work["summary"]
    names = [n for n, found in summary.items() if "stall_all_s@1" in found]
    names.sort(key=lambda n: -summary[n]["stall_all_s@1"]["median"])
    labels = {"stall_first_s": "first save of the process", "stall_s@1": "later, saving every 1"}
    _bars(axes, summary, labels, names)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("seconds the trainer stands still per save: call and fence (bar: all rounds)")
    if names:
        axes.legend(loc="lower left", fontsize=8)
    return "stall per save"


def _speed(axes: Any, work: Mapping[str, Any]) -> str:
    summary = work["summary"]
    names = [n for n, f in summary.items() if "speed@1" in f and PEERS[n].background]
    names.sort(key=lambda n: summary[n]["speed@1"]["median"])
    _bars(axes, summary, {"speed@1": "speed"}, names)
    axes.axvline(1, color="black", lw=1)
    axes.set_xlim(left=0)
    axes.set_xlabel("speed of training while a save runs, of undisturbed (stalls not counted)")
    return "training speed while saving at every iteration"


def _end_to_end(axes: Any, work: Mapping[str, Any]) -> str:
    bound: dict[int, float] = {}
    for at, (name, found) in enumerate(work["summary"].items()):
        points = {int(k[11:]): v for k, v in found.items() if k.startswith("end_to_end@")}
        xs, ours = sorted(points), name in OURS
        axes.plot(
            xs,
            [points[k]["median"] for k in xs],
            f"{_MARKS[at % len(_MARKS)]}-",
            color="black" if ours else colormaps["turbo"](at / 12),
            label=name,
            lw=2.5 if ours else 1,
        )
        bound |= {k: found[f"bound@{k}"]["median"] for k in xs}
    xs = sorted(bound)
    axes.plot(
        xs,
        [bound[k] for k in xs],
        "--",
        color="gray",
        lw=2,
        label="bound: max(compute, bytes / raw)",
    )
    axes.set_xscale("log")
    axes.set_xticks(xs, [str(k) for k in xs])
    axes.set_xticks([], minor=True)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel("iterations from save to save")
    axes.set_ylabel("time until all is durable / undisturbed time")
    axes.grid(which="both", alpha=0.25)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return "end to end"


def _draw(works: Works, panel: Callable[[Any, Any], str], path: Path) -> None:
    figure = Figure(figsize=(8.5 * len(works), 6))
    for axes, (kind, work) in zip(
        figure.subplots(1, len(works), squeeze=False)[0], works.items(), strict=True
    ):
        axes.set_title(_title(kind, work, panel(axes, work)), fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def draw(works: Works, directory: Path) -> None:
    """Draw the three pictures of a run; each has a panel for each work."""
    for name, panel in (("per_save", _stall), ("end_to_end", _end_to_end), ("speed", _speed)):
        _draw(works, panel, directory / f"bench_stall_{name}.png")
