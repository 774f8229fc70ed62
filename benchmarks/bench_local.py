"""Saving and restoring on a local disk, against raw direct I/O and against the usual ways.

One paired run: a round measures everybody once in shuffled order (raw direct I/O twice), each in
a process of its own; ratios are taken within a round, and their median and spread over the rounds
are reported. Everybody's bytes are durable when the clock stops: who does not sync is synced.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import click
import machine
import plots
import rawdisk
import report
import states
from contenders import CONTENDERS
from rich.progress import Progress

HERE = Path(__file__).parent
NOTES = (
    "Restoring means that existing tensors hold the values: torch.load and safetensors load into "
    "fresh memory first, so a copy_ into each tensor follows and is timed; DCP and datastates "
    "load in place. 'mmap without copy' reads nothing and fills nothing: shown, not compared.",
    "Who does not sync by itself has its files and directories synced afterwards, timed. "
    "Writing back the page cache is work of the kernel's threads, which no CPU figure here counts.",
    "Cold: the files are not in the page cache (checked page by page); names and inodes may be. "
    "Warm: they are. Raw passes the cache by, so warm is compared with raw cold.",
    "Extra memory is the peak of resident memory during the call over that before it; of a mapped "
    "file it counts the pages that were touched. datastates keeps its arena between saves.",
)
_PROBE_NBYTES = 256 << 20


class Bench:
    """Runs rounds over one state, below one directory."""

    def __init__(self, root: Path, kind: str, size: int, names: Sequence[str]) -> None:
        self.root, self.kind, self.size = root, kind, size
        self._savers = [n for n in names if CONTENDERS[n].saves]
        self._loaders = [n for n in names if CONTENDERS[n].loads]

    def jobs(self, seed: int) -> list[tuple[str, str]]:
        """Return what a round measures, in its order: phase and contender."""
        shuffle = random.Random(seed).shuffle
        saves, cold = [*self._savers, report.YARDSTICK], [*self._loaders, report.YARDSTICK]
        warm = [name for name in self._loaders if name != report.YARDSTICK]
        found = []
        for phase, names in (("save", saves), ("cold", cold), ("warm", warm)):
            shuffle(names)
            found += [(phase, name) for name in names]
        return found

    def measure(self, phase: str, name: str) -> dict[str, dict[str, float]]:
        root = self.root / CONTENDERS[name].reads.replace(" ", "-").replace("/", "-")
        job = {"contender": name, "phase": phase, "kind": self.kind, "size": self.size}
        if phase == "save":
            shutil.rmtree(root, ignore_errors=True)
        command = [sys.executable, "-W", "ignore", str(HERE / "measure.py")]
        done = subprocess.run(
            [*command, json.dumps(job | {"root": str(root)})],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise click.ClickException(f"{name}, {phase}: {done.stderr[-2000:]}")
        found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
        return found

    def round(self, seed: int, tick: Any) -> dict[str, dict[str, list[dict[str, float]]]]:
        """Measure everybody once; the files are gone at the end."""
        found: dict[str, dict[str, list[dict[str, float]]]] = {}
        for phase, name in self.jobs(seed):
            tick(f"{self.kind}, round {seed + 1}: {phase}, {name}")
            for kind, values in self.measure(phase, name).items():
                found.setdefault(kind, {}).setdefault(name, []).append(values)
        for path in self.root.iterdir():
            shutil.rmtree(path)
        return found


class Disk:
    """Waits until the disk is as fast as it was: removing files makes it slow for a while."""

    def __init__(self, path: Path, nbytes: int) -> None:
        self._path, self._memory = path, rawdisk.memory(nbytes)
        rawdisk.write(path, self._memory)
        self._best = min(self._probe_s() for _ in range(3))

    def _probe_s(self) -> float:
        start = perf_counter()
        rawdisk.write(self._path, self._memory)
        return perf_counter() - start

    def settle(self) -> float:
        """Return how fast it is now, of what it was at best; gives up after a while."""
        for pause in (0, 1, 2, 4, 8):
            sleep(pause)
            taken = self._probe_s()
            if taken < 1.25 * self._best:
                break
        ratio = self._best / taken
        self._best = min(self._best, taken)
        return ratio


@contextmanager
def _workspace(parent: Path | None, needed: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-local-", dir=parent) as name:
        free = shutil.disk_usage(name).free
        if free < needed:
            raise click.ClickException(
                f"{needed / 2**30:.1f} GiB of disk are needed, {free / 2**30:.1f} are free: "
                "give another --dir, or a smaller --mib"
            )
        yield Path(name)


def _run_state(bench: Bench, rounds: int, disk: Disk) -> dict[str, Any]:
    total = rounds * len(bench.jobs(0))
    found, settled = [], []
    with Progress() as progress:
        task = progress.add_task("", total=total)

        def tick(what: str) -> None:
            progress.update(task, description=what, advance=1)

        for seed in range(rounds):
            settled.append(disk.settle())
            found.append(bench.round(seed, tick))
    nbytes = states.state_nbytes(bench.kind, bench.size)
    return {
        "tensors": states.state_tensors(bench.kind, bench.size),
        "nbytes": nbytes,
        "rounds": found,
        "disk_before_round": settled,
        "summary": report.summarize(found, nbytes),
        "checks": report.as_json(report.check(found)),
    }


def _names(chosen: str | None) -> list[str]:
    names = list(CONTENDERS) if chosen is None else [n.strip() for n in chosen.split(",")]
    unknown = [name for name in names if name not in CONTENDERS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]} is none of: {', '.join(CONTENDERS)}")
    always = [n for n in (report.YARDSTICK, report.OURS) if n not in names]
    return [*always, *names]


@click.command(help=__doc__)
@click.option("--rounds", default=5, show_default=True, help="How many rounds.")
@click.option("--state", "kind", default="both", type=click.Choice([*states.KINDS, "both"]))
@click.option("--mib", default=2048, show_default=True, help="Size of the state gpt, in MiB.")
@click.option("--leaves", default=10_000, show_default=True, help="Tensors of the state small.")
@click.option("--contenders", help=f"Some of: {', '.join(CONTENDERS)}.")
@click.option("--quick", is_flag=True, help="256 MiB, 500 leaves, 1 round: does it run?")
@click.option("--dir", "parent", type=click.Path(path_type=Path, exists=True), help="Where.")
@click.option("--out", type=click.Path(path_type=Path), default=HERE / "results")
def main(
    rounds: int,
    kind: str,
    mib: int,
    leaves: int,
    contenders: str | None,
    quick: bool,
    parent: Path | None,
    out: Path,
) -> None:
    if quick:
        rounds, mib, leaves = 1, min(mib, 256), min(leaves, 500)
    names, sizes = _names(contenders), {"gpt": mib, "small": leaves}
    kinds = states.KINDS if kind == "both" else (kind,)
    largest = max(states.state_nbytes(k, sizes[k]) for k in kinds)
    with _workspace(parent, 2 * len(names) * largest + (1 << 30)) as root:
        (root / "files").mkdir()
        disk = Disk(root / "probe", min(_PROBE_NBYTES, largest))
        benches = [Bench(root / "files", k, sizes[k], names) for k in kinds]
        found = {b.kind: _run_state(b, rounds, disk) for b in benches}
        facts = machine.facts(root)
    result = {"benchmark": "local", "machine": facts, "notes": NOTES, "states": found}
    out.mkdir(parents=True, exist_ok=True)
    (out / "bench_local.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    plots.draw(found, out / "bench_local.png")
    report.show(found, NOTES, click.echo)


if __name__ == "__main__":
    main()
