"""One contender in one training loop, in a process of its own.

`python stall_train.py JOB`, where JOB is JSON: contender, work, mib, tokens, iterations, baseline,
intervals, root, record. Appends a line of JSON to the file `record` for each phase that it has
ended, so that what was measured before a failure is not lost. The phases, in order:

baseline   iterations of the loop before anyone was told of checkpoints
setup      the contender is made, and told of the optimizer
first      an iteration with the first save, then wait until it is durable
alone      a save while nothing else runs, until it is durable: what it writes, at which cost
interval   for each interval: iterations, with a save before every so many, until all are durable
exact      an iteration with a save; then checksums decide whether it holds the state of the call
cold, warm restore of that, from disk and from the page cache, compared with the checksums
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from time import perf_counter
from typing import Any

import pagecache
import procs
import stall_work
import states
import torch
from measure import Cost
from rawdisk import sync_tree
from stall_contender import CannotRunError, InTraining
from stall_peers import PEERS

_NAME = "training"


class Loop:
    """The training loop, with its clocks: iteration, save call, fence."""

    def __init__(self, work: stall_work.Work) -> None:
        self.work = work
        self.contender: InTraining | None = None
        self.step = 0
        self._entered = self._passed = 0.0
        work.optimizer.register_step_pre_hook(self._enter)

    def attach(self, contender: InTraining) -> None:
        """Let the contender's hooks lie between ours."""
        contender.attach(self.work.optimizer)
        self.work.optimizer.register_step_pre_hook(self._pass)
        self.contender = contender

    def _enter(self, *_: object) -> None:
        self._entered = self._passed = perf_counter()

    def _pass(self, *_: object) -> None:
        self._passed = perf_counter()

    def save(self) -> tuple[float, Callable[[], None]]:
        """Begin to save; return the seconds that it took, and what waits for the end."""
        assert self.contender is not None
        self.step += 1
        state = self.work.state()
        start = perf_counter()
        wait = self.contender.save(state, self.step)
        return perf_counter() - start, wait

    def iterate(self) -> tuple[float, float]:
        """Train once; return the seconds of it all, and those of the fence."""
        start = perf_counter()
        self.work.forward_backward()
        if self.contender is None:
            self.work.optimizer.step()
            return perf_counter() - start, 0.0
        arrived = perf_counter()
        with self.contender.fence():
            fence_s = perf_counter() - arrived
            self.work.optimizer.step()
        return perf_counter() - start, fence_s + self._passed - self._entered


def _cpu_s() -> float:
    """Return the CPU seconds of this process and of those that it has started."""
    used = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    mine = sum(u.ru_utime + u.ru_stime for u in used)
    return mine + sum(procs.cpu_s(pid) for pid in procs.tree(os.getpid())[1:])


class Trial:
    """Runs the phases and records them."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job, self._record = job, Path(job["record"])
        self._root = Path(job["root"]) / _NAME
        self._kind = PEERS[job["contender"]]
        self._loop = Loop(stall_work.WORKS[job["work"]](job["mib"], job["tokens"]))
        self._phase, self._start, self._cpu = "start", perf_counter(), 0.0

    def run(self) -> None:
        self._baseline()
        self._setup()
        if self._kind.saves:
            self._first()
            self._alone()
        for interval in self._job["intervals"]:
            self._interval(interval)
        if self._kind.loads:
            self._restore()
        self._contender.close()

    def _enter(self, phase: str) -> None:
        self._phase, self._cpu, self._start = phase, _cpu_s(), perf_counter()

    def _leave(self, **values: Any) -> None:
        end = perf_counter()
        times = {"start": self._start, "end": end, "cpu_s": _cpu_s() - self._cpu}
        line = json.dumps({"phase": self._phase, **times, **values})
        with self._record.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def _baseline(self) -> None:
        for _ in range(2):  # the first makes the optimizer's state and touches all memory
            self._loop.iterate()
        self._enter("baseline")
        taken = [self._loop.iterate()[0] for _ in range(self._job["baseline"])]
        state = self._loop.work.state()
        self._nbytes = stall_work.nbytes(state)
        count = sum(len(part) for part in state.values())
        self._leave(iteration_s=taken, nbytes=self._nbytes, tensors=count)

    def _setup(self) -> None:
        self._enter("setup")
        self._contender = self._kind(self._root)
        self._loop.attach(self._contender)
        self._leave(versions={name: version(name) for name in self._kind.packages})

    def _end(self, *waits: Callable[[], None]) -> None:
        """Wait until everything is durable."""
        for wait in waits:
            wait()
        if not self._kind.durable:
            sync_tree(self._root)

    def _tidy(self) -> None:
        """Remove steps that nobody needs, untimed; datastates does it by itself, timed."""
        for step in range(1, self._loop.step):
            place = self._contender.place(step)
            if not isinstance(self._contender, PEERS["datastates, eager"]) and place.exists():
                (shutil.rmtree if place.is_dir() else os.remove)(place)
        if self._kind.saves:
            pagecache.evict(self._contender.place(self._loop.step))

    def _first(self) -> None:
        self._enter("first")
        call_s, wait = self._loop.save()
        iteration_s, fence_s = self._loop.iterate()
        self._end(wait)
        budget = self._contender.budget_nbytes()
        self._leave(call_s=call_s, fence_s=fence_s, iteration_s=iteration_s, budget=budget)
        self._tidy()

    def _alone(self) -> None:
        self._enter("alone")
        call_s, wait = self._loop.save()
        self._end(wait)
        self._leave(call_s=call_s)
        self._tidy()

    def _interval(self, interval: int) -> None:
        iterations = interval * -(-self._job["iterations"] // interval)
        found: dict[str, list[float]] = {"call_s": [], "fence_s": [], "iteration_s": []}
        waits = []
        self._enter("interval")
        for at in range(iterations):
            call_s = 0.0
            if at % interval == 0:
                call_s, wait = self._loop.save()
                waits.append(wait)
            iteration_s, fence_s = self._loop.iterate()
            for key, value in zip(found, (call_s, fence_s, iteration_s), strict=True):
                found[key].append(value)
        trained_s = perf_counter() - self._start
        self._end(*waits)
        self._leave(interval=interval, saves=len(waits), trained_s=trained_s, **found)
        self._tidy()

    def _restore(self) -> None:
        self._enter("exact")
        state = self._loop.work.state()
        expected = stall_work.fingerprint(state)
        wait = self._loop.save()[1]
        self._loop.iterate()
        self._end(wait)
        self._leave()
        self._tidy()
        place = self._contender.place(self._loop.step)
        for phase in ("cold", "warm"):
            resident = pagecache.evict(place) if phase == "cold" else pagecache.fill(place)
            for _, tensor in states.tensors(state):
                tensor.zero_()
            self._enter(phase)
            with Cost(0) as cost:
                loaded = self._contender.load(state, self._loop.step)
            del loaded
            self._leave(seconds=cost.values["seconds"], resident=resident)
            wrong = [n for n, s in stall_work.fingerprint(state).items() if s != expected[n]]
            if wrong:
                raise RuntimeError(
                    f"{len(wrong)} tensors are not those of the call, {wrong[0]} for one"
                )


def main(job: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    try:
        Trial(job).run()
    except CannotRunError as reason:
        with Path(job["record"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"phase": "not here", "reason": str(reason)}) + "\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
