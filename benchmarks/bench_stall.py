"""How much training notices its checkpoints: datastates beside what a user would pick instead.

One paired run. In a round every contender trains once, in shuffled order, each in a process of its
own, which first measures its undisturbed iterations; raw direct I/O is measured before and after
each. Ratios are taken within a trial or a round, and their median and range over rounds reported.
Whoever fails, or is not installed, is named with the reason, and the run goes on; the results are
written after every round.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import machine
import stall_plots
import stall_report
import stall_tables
from bench_local import Disk
from stall_peers import PEERS
from stall_raw import Yardstick
from stall_watch import watch
from stall_work import WORKS

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent / "build" / "peers"
NOTES = (
    "Training runs on one thread. A stall is the time in the save call, in the fence before the "
    "optimizer's step (lock, staging, our guard), and waiting for the save before where one at a "
    "time is allowed. The save lies before the iteration's forward.",
    "All durable: files and directories are synced. Who does not do that has it done at the end of "
    "the run, in the end-to-end time but not in the stall.",
    "Older steps are removed between the runs, untimed; datastates (`keep_last=2`) removes its own "
    "while training goes on, and all that this costs is in its figures.",
    "Every trial ends with a save during an iteration that is restored and compared with the "
    "state at the call, bit for bit.",
    "Training speed: undisturbed iteration over one that began with a save, stalls not counted.",
    "Persisted, CPU: one save while nothing else runs, its processes included; writing back the "
    "page cache is work of the kernel's, which nobody's CPU figure counts.",
    "Extra memory: the most that the process and its children held during all saves, over the "
    "most before; page cache not included. Memory shared among them is counted once.",
    "Restore fills the training's own tensors; who loads into fresh memory copies, timed. Cold: "
    "files are not in the page cache; warm: they are. memcpy: one thread, memory that was touched.",
)
_PROBE_NBYTES, _RAW_NBYTES = 256 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Options:
    """What a run does."""

    mib: int
    """Size of a state."""
    tokens: int
    """Length of the GPT's sequence: how long it computes for a byte of state."""
    iterations: int
    """At least so many for each interval, and at least one save."""
    baseline: int
    """Undisturbed iterations."""
    intervals: tuple[int, ...]
    """Iterations from one save to the next."""
    deadline_s: float
    """Longest time for one trial."""


class Bench:
    """Runs trials below one directory, and keeps it empty between them."""

    def __init__(self, root: Path, options: Options, *, settle: bool = True) -> None:
        """Without `settle` a disk that is busy removing files is not waited for."""
        self._root, self._options = root, options
        self._disk = Disk(root / "probe", _PROBE_NBYTES) if settle else None
        self._yardstick = Yardstick(root / "raw", min(_RAW_NBYTES, options.mib << 20))

    def trial(self, work: str, name: str) -> dict[str, Any]:
        """Let one contender train; an error is part of what is returned."""
        python, why_not = _python(name)
        if why_not:
            phases = [{"phase": "not here", "reason": why_not}]
            return {"phases": phases, "error": None, "base_nbytes": None, "extra_nbytes": None}
        place = self._root / "trial"
        place.mkdir()
        record, log = place / "record", place / "log"
        job = {"contender": name, "work": work, "root": str(place), "record": str(record)}
        command = [python, "-W", "ignore", str(HERE / "stall_train.py")]
        command.append(json.dumps(asdict(self._options) | job))
        try:
            found = watch(command, record, log, self._options.deadline_s)
        finally:
            shutil.rmtree(place)
        found["error"] = self._anonymous(found["error"])
        return found

    def round(self, work: str, names: Sequence[str], seed: int) -> dict[str, dict[str, Any]]:
        """Let everybody train once; raw rates are those around each trial."""
        order = random.Random(seed).sample(names, len(names))
        found = {}
        before = self._settled()
        for name in order:
            start = perf_counter()
            trial = self.trial(work, name)
            after = self._settled()
            found[name] = {**trial, "raw": stall_report.average(before, after)}
            before = after
            said = trial["error"] or f"{perf_counter() - start:.0f} s"
            click.echo(f"{work}, round {seed + 1}: {name}: {said}", err=True)
        return found

    def _settled(self) -> dict[str, float]:
        if self._disk is not None:
            self._disk.settle()
        return self._yardstick.measure()

    def _anonymous(self, error: str | None) -> str | None:
        for path, name in ((str(self._root), "DIR"), (sys.prefix, "PYTHON"), (str(HERE), "HERE")):
            error = error and error.replace(path, name)
        return error


def _python(name: str) -> tuple[str, str | None]:
    """Return the interpreter for a contender, and why it cannot run."""
    environment = PEERS[name].environment
    if environment is None:
        return sys.executable, None
    python = ENVIRONMENTS / environment / "bin" / "python"
    failed = ENVIRONMENTS / f"{environment}.failed"
    if failed.exists():
        return "", failed.read_text("utf-8").strip() or "it could not be installed"
    if not python.exists():
        return "", "not installed: run benchmarks/peers/setup"
    return str(python), None


def _set_up(names: Sequence[str]) -> None:
    wanted = sorted({e for n in names if (e := PEERS[n].environment) is not None})
    if wanted:
        command = [str(HERE / "peers" / "setup"), *wanted]
        subprocess.run(command, env={**os.environ, "PYTHON": sys.executable}, check=False)


@contextmanager
def _workspace(parent: Path | None, options: Options) -> Iterator[Path]:
    nbytes = options.mib << 20
    saves = max(-(-options.iterations // k) for k in options.intervals)
    needed = (saves + 3) * nbytes * 5 // 4 + (2 << 30)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with tempfile.TemporaryDirectory(prefix="bench-stall-", dir=parent) as name:
        free = shutil.disk_usage(name).free
        for what, need, there in (("disk", needed, free), ("memory", 4 * nbytes, memory)):
            if there < need:
                raise click.ClickException(
                    f"{need / 2**30:.1f} GiB of {what} are needed, there are {there / 2**30:.1f}: "
                    "give a smaller --gib, or another --dir"
                )
        yield Path(name)


def _work_result(rounds: Sequence[Any]) -> dict[str, Any]:
    """Return what is to say of the rounds of one work."""
    phases = [p for r in rounds for t in r.values() for p in t["phases"]]
    sizes = next((p for p in phases if p["phase"] == "baseline"), {"nbytes": 0, "tensors": 0})
    return {
        "tensors": sizes["tensors"],
        "nbytes": sizes["nbytes"],
        "versions": {k: v for p in phases for k, v in p.get("versions", {}).items()},
        "raw": stall_report.raw_rates(rounds),
        "summary": stall_report.summarize(rounds, sizes["nbytes"]),
        "failures": stall_report.failures(rounds),
        "checks": [asdict(c) for c in stall_report.check(rounds, sizes["nbytes"])],
        "rounds": rounds,
    }


def _write(found: Mapping[str, Any], options: Options, facts: Mapping[str, Any], out: Path) -> Any:
    works = {kind: _work_result(rounds) for kind, rounds in found.items() if rounds}
    result = {"benchmark": "stall", "machine": facts, "options": asdict(options), "notes": NOTES}
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**result, "works": works}, indent=1) + "\n"
    (out / "bench_stall.json").write_text(text, encoding="utf-8")
    stall_plots.draw(works, out)
    return works


def _run(
    bench: Bench, works: Sequence[str], names: Sequence[str], rounds: int, end: float
) -> Iterator[dict[str, list[Any]]]:
    """Yield all rounds so far, after each; start none that would not end in time."""
    found: dict[str, list[Any]] = {work: [] for work in works}
    longest_s = 0.0
    for seed in range(rounds):
        start = perf_counter()
        if seed and start + longest_s > end:
            click.echo(f"the time is up after {seed} rounds", err=True)
            return
        for work in works:
            found[work].append(bench.round(work, names, seed))
            yield found
        longest_s = max(longest_s, perf_counter() - start)


def _names(chosen: str | None) -> list[str]:
    names = list(PEERS) if chosen is None else [n.strip() for n in chosen.split(";")]
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of: {'; '.join(PEERS)}")
    return list(dict.fromkeys([stall_report.UNDISTURBED, *names]))


def _numbers(_context: object, _parameter: object, value: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter("give numbers, with commas between them") from None
    if min(found) < 1:
        raise click.BadParameter("an interval is at least 1")
    return found


@click.command(help=__doc__)
@click.option("--rounds", default=3, show_default=True, help="At most so many rounds.")
@click.option("--minutes", default=40.0, show_default=True, help="Start no round that ends later.")
@click.option("--work", default="both", type=click.Choice([*WORKS, "both"]), help="What trains.")
@click.option("--gib", default=0.5, show_default=True, help="Size of the state.")
@click.option("--tokens", default=128, show_default=True, help="Sequence of the GPT.")
@click.option("--intervals", default="1,2,5,10", show_default=True, callback=_numbers)
@click.option("--iterations", default=4, show_default=True, help="At least, for each interval.")
@click.option("--contenders", help=f"Some of, with ; between them: {'; '.join(PEERS)}.")
@click.option("--deadline-s", default=900.0, show_default=True, help="For one trial.")
@click.option("--quick", is_flag=True, help="128 MiB, intervals 1 and 5, 1 round: does it run?")
@click.option("--set-up/--no-set-up", default=True, help="Install peers that are missing.")
@click.option("--dir", "parent", type=click.Path(path_type=Path, exists=True), help="Where.")
@click.option("--out", type=click.Path(path_type=Path), default=HERE / "results")
def main(
    rounds: int,
    minutes: float,
    work: str,
    gib: float,
    tokens: int,
    intervals: tuple[int, ...],
    iterations: int,
    contenders: str | None,
    deadline_s: float,
    quick: bool,
    set_up: bool,
    parent: Path | None,
    out: Path,
) -> None:
    names, works = _names(contenders), list(WORKS) if work == "both" else [work]
    baseline = 4
    if quick:
        rounds, gib, intervals, baseline = 1, min(gib, 0.125), (1, 5), 2
    options = Options(int(gib * 1024), tokens, iterations, baseline, intervals, deadline_s)
    end = perf_counter() + 60 * minutes
    if set_up:
        _set_up(names)
    with _workspace(parent, options) as root:
        facts, bench = machine.facts(root), Bench(root, options, settle=not quick)
        for found in _run(bench, works, names, rounds, end):
            results = _write(found, options, facts, out)
    stall_tables.show(results, NOTES, click.echo)


if __name__ == "__main__":
    main()
