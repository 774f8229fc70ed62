"""One measurement, in a process of its own, so that memory and CPU seconds are clean.

`python measure.py JOB`, where JOB is JSON: contender, phase (`save`, `cold` or `warm`), kind and
size of the state, root. Prints one JSON object: the phase's measurements by name.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from time import perf_counter
from typing import Any

import pagecache
from contenders import CONTENDERS, Contender
from rawdisk import sync_tree


def _memory(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"))
    return int(found[1]) * 1024 if found else 0


def _cpu_s() -> float:
    used = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


class Cost:
    """What a block of code costs, in seconds, CPU seconds and memory above `base`."""

    def __init__(self, base: int) -> None:
        self._base = base

    def __enter__(self) -> Cost:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
        self._cpu, self._start = _cpu_s(), perf_counter()
        return self

    def elapsed_s(self) -> float:
        return perf_counter() - self._start

    def __exit__(self, *_: object) -> None:
        self.values: dict[str, float] = {
            "seconds": self.elapsed_s(),
            "cpu_s": _cpu_s() - self._cpu,
            "extra_nbytes": max(0, _memory("VmHWM") - self._base),
        }


def _rehearse(kind: type[Contender], root: Path) -> None:
    """Save and load something tiny: what is imported or set up at the first use is not timed."""
    place = root.with_name(f"{root.name}.rehearsal")
    contender = kind(place)
    state = contender.state("small", 10, empty=False)
    contender.save(state, 1)()
    contender.load(state, 1)
    contender.close()
    shutil.rmtree(place)


def _save(contender: Contender, state: Any) -> dict[str, Any]:
    base, found = _memory("VmRSS"), {}
    for number, name in ((1, "save_first"), (2, "save")):
        os.sync()
        with Cost(base) as cost:
            wait = contender.save(state, number)
            stall_s = cost.elapsed_s()
            wait()
            if not contender.durable:
                sync_tree(contender.root)
        found[name] = cost.values | {"stall_s": stall_s}
        pagecache.evict(contender.root)  # or the next one would have to make room
    return found


def _load(contender: Contender, state: Any, phase: str) -> dict[str, Any]:
    if phase == "cold":
        pagecache.evict(contender.root)
    else:
        pagecache.fill(contender.place(2))
    resident = pagecache.resident(contender.place(2))
    if (resident > 0.01) if phase == "cold" else (resident < 0.99):
        raise RuntimeError(f"{resident:.0%} of the files are in the page cache, so not {phase}")
    with Cost(_memory("VmRSS")) as cost:
        loaded = contender.load(state, 2)
    del loaded
    if not contender.is_exact(state):
        raise RuntimeError(f"{contender.name} did not load what was saved")
    pagecache.evict(contender.root)
    return {phase: cost.values | {"resident": resident}}


def main(job: dict[str, Any]) -> None:
    kind, root, phase = CONTENDERS[job["contender"]], Path(job["root"]), job["phase"]
    _rehearse(kind, root)
    contender = kind(root)
    state = contender.state(job["kind"], job["size"], empty=phase != "save")
    found = _save(contender, state) if phase == "save" else _load(contender, state, phase)
    contender.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
