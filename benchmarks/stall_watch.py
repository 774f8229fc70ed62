"""Runs one trial in a process of its own, watches its memory from outside, and ends it in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import procs

_EVERY_S = 0.05
_LAST_CHARACTERS = 300


def watch(command: Sequence[str], record: Path, log: Path, deadline_s: float) -> dict[str, Any]:
    """Run a trial to its end; return its phases, its memory, and its error or None.

    Memory is sampled, as what the process and its children hold, files apart; `extra_nbytes` is
    the most from `setup` to the end of the saves, over the most of the undisturbed iterations.
    """
    start, samples = perf_counter(), []
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        while process.poll() is None and perf_counter() - start < deadline_s:
            samples.append((perf_counter(), procs.memory_nbytes(process.pid)))
            sleep(_EVERY_S)
        code = process.poll()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # whoever is left of its children, too
        process.wait()
    phases = [json.loads(line) for line in _lines(record)]
    error = None
    if code is None:
        after = phases[-1]["phase"] if phases else "start"
        error = f"not done after {deadline_s:.0f} s, nor soon after the phase {after!r}"
    elif code:
        error = _last_words(log, code)
    elapsed_s = perf_counter() - start
    return {"phases": phases, "elapsed_s": elapsed_s, "error": error, **_memory(phases, samples)}


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines() if path.exists() else []


def _last_words(log: Path, code: int) -> str:
    """Return the last line that looks like an exception's, or the last one."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines()]
    said = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    return (said or [line for line in lines if line] or [f"exit {code}"])[-1][-_LAST_CHARACTERS:]


def _memory(phases: Sequence[Any], samples: Sequence[tuple[float, int]]) -> dict[str, int | None]:
    def most(start: float, end: float) -> int:
        return max((nbytes for at, nbytes in samples if start <= at <= end), default=0)

    undisturbed = [p for p in phases if p["phase"] == "baseline"]
    saving = [p for p in phases if p["phase"] in ("first", "alone", "interval")]
    if not undisturbed or not saving:
        return {"base_nbytes": None, "extra_nbytes": None}
    base = most(undisturbed[0]["start"], undisturbed[0]["end"])
    peak = most(undisturbed[0]["end"], saving[-1]["end"])
    return {"base_nbytes": base, "extra_nbytes": max(0, peak - base)}
