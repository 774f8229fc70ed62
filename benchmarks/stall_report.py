"""What the trials say: figures within a trial, ratios within a round, medians over rounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any

from report import Check
from stall_peers import PEERS

OURS = ("datastates, lazy", "datastates, eager")
UNDISTURBED = "no checkpoints"
Trial = Mapping[str, Any]
Round = Mapping[str, Trial]
"""contender → its trial in this round"""
Spread = dict[str, float]


def _stalls(phase: Mapping[str, Any]) -> float:
    """Return the seconds in all of a phase's save calls and fences."""
    calls, fences = phase["call_s"], phase["fence_s"]
    return sum(calls) + sum(fences) if isinstance(calls, list) else calls + fences


def _of_interval(phase: Mapping[str, Any], base_s: float, trial: Trial, nbytes: int) -> Any:
    at, saves = phase["interval"], phase["saves"]
    seconds = phase["end"] - phase["start"]
    compute_s = base_s * len(phase["iteration_s"])
    writing_s = saves * nbytes / trial["raw"]["write"]
    yield f"stall_s@{at}", _stalls(phase) / saves
    yield f"stall_part@{at}", _stalls(phase) / saves / base_s
    yield f"end_to_end@{at}", seconds / compute_s
    yield f"bound@{at}", max(compute_s, writing_s) / compute_s
    yield f"over_bound@{at}", seconds / max(compute_s, writing_s)
    pairs = zip(phase["iteration_s"], phase["fence_s"], strict=True)
    trained = [took - fence for took, fence in pairs][::at]  # those that began with a save
    yield f"speed@{at}", base_s / median(trained)


def _of_saves(phases: Mapping[str, Any], raw: Mapping[str, float], nbytes: int) -> Any:
    if "first" in phases:
        yield "stall_first_s", _stalls(phases["first"])
    if "alone" in phases:
        rate = nbytes / (phases["alone"]["end"] - phases["alone"]["start"])
        yield "persisted", rate / raw["write"]
        yield "persisted_gb_per_s", rate / 1e9
        yield "cpu_s_per_gib", phases["alone"]["cpu_s"] / nbytes * 2**30
    for phase, yardstick in (("cold", "read"), ("warm", "memcpy")):
        if phase in phases:
            rate = nbytes / phases[phase]["seconds"]
            yield phase, rate / raw[yardstick]
            yield f"{phase}_gb_per_s", rate / 1e9


def figures(trial: Trial, nbytes: int) -> dict[str, float]:
    """Return what one trial measured, by name; `name@k` is of the run that saves at every k."""
    phases = {p["phase"]: p for p in trial["phases"] if p["phase"] != "interval"}
    if "baseline" not in phases:
        return {}
    base_s = median(phases["baseline"]["iteration_s"])
    found = {"iteration_s": base_s, **dict(_of_saves(phases, trial["raw"], nbytes))}
    if trial["extra_nbytes"] is not None:
        found["extra_nbytes"] = trial["extra_nbytes"]
    for phase in trial["phases"]:
        if phase["phase"] != "interval":
            continue
        found |= _of_interval(phase, base_s, trial, nbytes)
        if "first" in phases:
            stalled_s = _stalls(phases["first"]) + _stalls(phase)
            found[f"stall_all_s@{phase['interval']}"] = stalled_s / (1 + phase["saves"])
    return found


def spread(values: Sequence[float]) -> Spread:
    return {"median": median(values), "min": min(values), "max": max(values)}


def summarize(rounds: Sequence[Round], nbytes: int) -> dict[str, dict[str, Spread]]:
    """Return contender → figure → its median and range over the rounds."""
    taken: dict[str, dict[str, list[float]]] = {}
    for trials in rounds:
        for name, trial in trials.items():
            for figure, value in figures(trial, nbytes).items():
                taken.setdefault(name, {}).setdefault(figure, []).append(value)
    return {
        name: {figure: spread(values) for figure, values in taken[name].items()}
        for name in PEERS
        if name in taken
    }


def failures(rounds: Sequence[Round]) -> dict[str, str]:
    """Return contender → why it did not run, or how it failed, and in which rounds."""
    found: dict[str, list[str]] = {}
    for number, trials in enumerate(rounds, start=1):
        for name, trial in trials.items():
            absent = [p["reason"] for p in trial["phases"] if p["phase"] == "not here"]
            if absent or trial["error"]:
                why = f"not run: {absent[0]}" if absent else f"failed: {trial['error']}"
                found.setdefault(name, []).append(f"round {number}: {why}")
    return {name: "; ".join(said) for name, said in found.items()}


class Judge:
    """Compares ours with the targets: medians over the rounds of ratios within a round."""

    def __init__(self, rounds: Sequence[Round], nbytes: int, ours: str) -> None:
        self._rounds = [{n: figures(t, nbytes) for n, t in r.items()} for r in rounds]
        self._trials, self._ours = rounds, ours
        self.checks: list[Check] = []

    def _values(self, figure: str) -> list[float]:
        return [r[self._ours][figure] for r in self._rounds if figure in r.get(self._ours, {})]

    def _ratios(self, figure: str, other: str) -> list[float]:
        pairs = [
            (r.get(self._ours, {}).get(figure), r.get(other, {}).get(figure)) for r in self._rounds
        ]
        return [ours / theirs for ours, theirs in pairs if ours is not None and theirs]

    def at_most(self, target: str, values: Sequence[float], limit: float) -> None:
        if values:
            value = median(values)
            self.checks.append(Check(target, value, limit, value <= limit))

    def at_least(self, target: str, values: Sequence[float], limit: float) -> None:
        if values:
            value = median(values)
            self.checks.append(Check(target, value, limit, value >= limit))

    def stalls(self) -> None:
        """Judge the stalls, first save included, at the interval that is worst for ours."""
        for name in PEERS:
            ratios = [self._ratios(f"stall_all_s@{k}", name) for k in self._intervals()]
            worst = max((r for r in ratios if r), key=median, default=[])
            if name not in (*OURS, UNDISTURBED):
                limit = 0.05 if name == "DCP async_save" else 1.0
                self.at_most(f"stall per save against {name}", worst, limit)
        self.at_most("stall per save, part of an iteration", self._values("stall_part@1"), 0.01)

    def _intervals(self) -> list[str]:
        keys = {k for r in self._rounds for k in r.get(self._ours, {})}
        return sorted(k.partition("@")[2] for k in keys if k.startswith("stall_all_s@"))

    def training(self) -> None:
        gains = []
        for figures_of in self._rounds:
            ours = figures_of.get(self._ours, {}).get("end_to_end@1")
            rivals = [
                f["end_to_end@1"]
                for n, f in figures_of.items()
                if n not in OURS and PEERS[n].background and "end_to_end@1" in f
            ]
            gains += [min(rivals) / ours] if ours and rivals else []
        self.at_least("end to end, against the best asynchronous peer", gains, 2.0)
        self.at_most("end to end, over the bound", self._values("over_bound@1"), 1.1)
        self.at_least("training speed while a save runs", self._values("speed@1"), 0.95)

    def storage(self) -> None:
        self.at_least("persisted against raw", self._values("persisted"), 0.9)
        self.at_least("restore, cold, against raw", self._values("cold"), 0.9)
        self.at_least("restore, warm, against memcpy", self._values("warm"), 0.8)
        over = []
        for trials in self._trials:
            trial = trials.get(self._ours, {"phases": []})
            budgets = [p.get("budget") for p in trial["phases"] if p["phase"] == "first"]
            if budgets and budgets[0]:
                over.append((trial["extra_nbytes"] - budgets[0]) / 2**20)
        self.at_most("extra memory over the budget, MiB", over, 64)


def check(rounds: Sequence[Round], nbytes: int) -> list[Check]:
    """Compare with the targets: the lazy way where it ran, else the eager one."""
    ran = [n for n in OURS if any("persisted" in figures(r[n], nbytes) for r in rounds if n in r)]
    if not ran:
        return []
    judge = Judge(rounds, nbytes, ran[0])
    judge.stalls()
    judge.training()
    judge.storage()
    return judge.checks


def raw_rates(rounds: Sequence[Round]) -> dict[str, Spread]:
    """Return the yardsticks, in 10^9 bytes a second."""
    trials = [t for r in rounds for t in r.values()]
    return {k: spread([t["raw"][k] / 1e9 for t in trials]) for k in trials[0]["raw"]}


def average(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {key: mean((before[key], after[key])) for key in before}
