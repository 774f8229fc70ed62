"""Draw the losses of the uninterrupted and of the killed and resumed run."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Losses = Mapping[int, float]
"""Step → loss in nats per byte."""

PALE, BLUE, ORANGE, GREY = "#bbbbbb", "#0072B2", "#D55E00", "#555555"  # distinct to every eye


def plot_losses(path: Path, whole: Losses, killed: Losses, resumed: Losses) -> None:
    """Write the picture to `path`; the three runs are drawn on top of each other."""
    with mpl.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(9, 5), dpi=150, layout="constrained")
        axes: Axes = figure.add_subplot()
        _draw_runs(axes, whole, killed, resumed)
        _mark_events(axes, killed, resumed)
        axes.set_xlabel("training step")
        axes.set_ylabel("training loss [nats per byte]")
        axes.set_xlim(0, max(whole) + 1)
        axes.set_title(_title(whole, {**killed, **resumed}), loc="left")
        axes.legend(loc="upper right", frameon=False)
        figure.savefig(path)


def _title(whole: Losses, interrupted: Losses) -> str:
    verdict = "the same losses, bit for bit" if whole == interrupted else "the losses DIFFER"
    return f"Killed in the middle of a save, and resumed: {verdict}"


def _draw_runs(axes: Axes, whole: Losses, killed: Losses, resumed: Losses) -> None:
    def draw(losses: Losses, colour: str, width: float, style: str, label: str) -> None:
        steps = sorted(losses)
        axes.plot(steps, [losses[s] for s in steps], style, color=colour, lw=width, label=label)

    draw(whole, PALE, 6, "-", "uninterrupted")
    draw(killed, BLUE, 1.6, "-", "killed")
    draw(resumed, ORANGE, 1.6, "--", "resumed")


def _mark_events(axes: Axes, killed: Losses, resumed: Losses) -> None:
    killed_at, resumed_from = max(killed), min(resumed) - 1
    axes.axvspan(resumed_from, killed_at, color=BLUE, alpha=0.12, lw=0, label="done twice")
    axes.plot(killed_at, killed[killed_at], "X", color=BLUE, ms=11, mec="white", zorder=5)
    axes.plot(resumed_from, killed[resumed_from], "o", color=ORANGE, ms=9, mec="white", zorder=5)
    for step, text, side in (
        (resumed_from, f"resumed from\nstep {resumed_from}", "right"),
        (killed_at, f"SIGKILL after\nstep {killed_at}", "left"),
    ):
        axes.axvline(step, color=GREY, lw=1, ls=":")
        axes.annotate(
            text,
            (step, 0.7),
            xycoords=("data", "axes fraction"),
            xytext=(-6 if side == "right" else 6, 0),
            textcoords="offset points",
            ha=side,
            color=GREY,
        )
