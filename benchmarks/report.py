"""What a run says: rates, ratios within rounds, and whether the targets are met. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

from contenders import CONTENDERS
from rich.console import Console
from rich.table import Table

OURS, PACKED, YARDSTICK = "datastates", "datastates packed", "raw"
Round = Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]
"""phase → contender → its measurements; the yardstick has several in a round."""

PHASES = {
    "save_first": "first save of a process, until durable",
    "save": "save, until durable",
    "cold": "restore, page cache cold",
    "warm": "restore, page cache warm",
}
_RAW_PHASE = {"warm": "cold"}
"""Raw I/O passes the page cache by, so it has no warm."""


def _seconds(found: Round, phase: str, name: str) -> float | None:
    phase = _RAW_PHASE.get(phase, phase) if name == YARDSTICK else phase
    taken = found.get(phase, {}).get(name)
    return mean(m["seconds"] for m in taken) if taken else None


def ratios(rounds: Sequence[Round], phase: str, name: str, other: str) -> list[float]:
    """Return, for each round, how many times as fast `name` was as `other`."""
    pairs = [(_seconds(r, phase, name), _seconds(r, phase, other)) for r in rounds]
    return [theirs / ours for ours, theirs in pairs if ours and theirs]


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


def summarize(rounds: Sequence[Round], nbytes: int) -> dict[str, dict[str, Any]]:
    """Return phase → contender → medians over the rounds."""
    gib = nbytes / 2**30
    found: dict[str, dict[str, Any]] = {}
    for phase in PHASES:
        for name in CONTENDERS:
            taken = [m for r in rounds for m in r.get(phase, {}).get(name, ())]
            if not taken:
                continue
            found.setdefault(phase, {})[name] = {
                "ratio_to_raw": _spread(ratios(rounds, phase, name, YARDSTICK)),
                "gib_per_s": _spread([gib / m["seconds"] for m in taken]),
                "cpu_s_per_gib": _spread([m["cpu_s"] / gib for m in taken]),
                "extra_nbytes": _spread([m["extra_nbytes"] for m in taken]),
            }
            if "stall_s" in taken[0]:
                found[phase][name]["stall_s"] = _spread([m["stall_s"] for m in taken])
    return found


@dataclass(frozen=True, slots=True)
class Check:
    """One target, and how far it was met."""

    target: str
    value: float
    limit: float
    passed: bool

    def __str__(self) -> str:
        verdict = "PASS" if self.passed else "FAIL"
        return f"{verdict}  {self.target}: {_number(self.value)} (limit {self.limit:g})"


def _others(phase: str, rounds: Sequence[Round]) -> list[str]:
    there = rounds[0].get(phase, {})
    own = (OURS, PACKED, YARDSTICK)
    return [n for n, c in CONTENDERS.items() if n in there and c.copies and n not in own]


def _cpu_ratios(rounds: Sequence[Round], phase: str, ours: str, other: str) -> list[float]:
    pairs = [(r[phase][ours], r[phase][other]) for r in rounds]
    return [mean(m["cpu_s"] for m in o) / mean(m["cpu_s"] for m in t) for o, t in pairs]


def check(rounds: Sequence[Round]) -> list[Check]:
    """Compare with the targets, in both layouts."""
    there = rounds[0].get("save", {})
    return [c for ours in (OURS, PACKED) if ours in there for c in _check(rounds, ours)]


def _check(rounds: Sequence[Round], ours: str) -> list[Check]:
    found = []

    def at_least(target: str, values: Sequence[float], limit: float) -> None:
        value = median(values)
        found.append(Check(f"{ours}: {target}", value, limit, value >= limit))

    at_least("save against raw", ratios(rounds, "save", ours, YARDSTICK), 0.7)
    at_least("cold restore against raw", ratios(rounds, "cold", ours, YARDSTICK), 0.7)
    for phase, what in (("save", "save"), ("warm", "warm restore")):
        for name in _others(phase, rounds):
            at_least(f"{what} against {name}", ratios(rounds, phase, ours, name), 1.0)
    for name in _others("save", rounds):
        value = median(_cpu_ratios(rounds, "save", ours, name))
        found.append(Check(f"{ours}: CPU of save against {name}", value, 0.5, value <= 0.5))
    return found


def _number(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 or not value else f"{value:.2g}"


def _range(values: Mapping[str, float]) -> str:
    low, middle, high = (_number(values[k]) for k in ("min", "median", "max"))
    return f"{middle}  ({low} to {high})"


def _table(title: str, found: Mapping[str, Any]) -> Table:
    table = Table(title=title, title_justify="left")
    stalls = any("stall_s" in values for values in found.values())
    heads = ["ratio to raw", "GiB/s", "CPU s/GiB", "extra MiB", *(["stalled s"] if stalls else [])]
    for head in ["", *heads]:
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    for name, values in sorted(found.items(), key=lambda i: -i[1]["ratio_to_raw"]["median"]):
        cells = [
            _range(values["ratio_to_raw"]),
            _range(values["gib_per_s"]),
            f"{values['cpu_s_per_gib']['median']:.2f}",
            f"{values['extra_nbytes']['max'] / 2**20:.0f}",
        ]
        cells += [f"{values['stall_s']['median']:.2f}"] if "stall_s" in values else []
        table.add_row(name, *cells, style="bold" if name in (OURS, PACKED) else None)
    return table


def show(states: Mapping[str, Any], notes: Sequence[str], write: Callable[[str], object]) -> None:
    """Print what was found: a table for each state and phase, the notes, the targets."""
    console = Console(width=130, highlight=False)
    for kind, state in states.items():
        head = f"{kind}: {state['tensors']} tensors, {state['nbytes'] / 2**20:.0f} MiB"
        for phase, found in state["summary"].items():
            console.print(_table(f"{head}; {PHASES[phase]}", found))
    for note in notes:
        write(f"- {note}")
    for kind, state in states.items():
        for item in state["checks"]:
            write(f"{kind}: {Check(**item)}")


def as_json(checks: Sequence[Check]) -> list[dict[str, Any]]:
    return [asdict(item) for item in checks]
