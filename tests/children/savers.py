"""What a child does that is to be killed: it saves, or restores, and says what is acknowledged."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from seam import Seam
from states import state

import datastates as ds

ARENA_NBYTES = 8 << 20
"""The smallest: a tensor over 2 MiB is then cut into pieces and becomes a Zarr shard."""


class Report:
    """A child's line to the server, and back."""

    def __init__(self, output: int, control: int) -> None:
        self._output, self._control = output, control

    def say(self, what: Any) -> None:
        """Report one JSON value; a single write, so it is out or it is not."""
        os.write(self._output, json.dumps(what).encode() + b"\n")

    def pause(self) -> None:
        """Stop until the test says to go on."""
        self.say("paused")
        os.read(self._control, 1)


class Trap:
    """Counts calls by name and path, and springs at one of them.

    `mode`: `before` or `after` the call, or `pause` before it.
    """

    def __init__(self, base: str, request: dict[str, Any], report: Report) -> None:
        self._base, self._report = base, report
        self._at, self._mode = request.get("at"), request.get("mode", "before")
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def __call__(self, name: str, path: str, real: Callable[[], Any]) -> Any:
        """See `seam.Handler`."""
        key = f"{name} {os.path.relpath(path, self._base)}"
        with self._lock:
            count = self._counts[key] = self._counts.get(key, 0) + 1
        if self._at != f"{key} {count}":
            return real()
        if self._mode == "pause":
            self._report.pause()
            return real()
        with contextlib.suppress(OSError):  # where the call fails, its end is a moment, too
            if self._mode == "after":
                real()
        os.kill(os.getpid(), signal.SIGKILL)
        return signal.pause()

    def calls(self) -> list[str]:
        """Return all keys that were seen."""
        return [f"{key} {i + 1}" for key, count in self._counts.items() for i in range(count)]


def save(request: dict[str, Any], report: Report) -> None:
    """Save each of `saves` = [step, seed] below `base`/run; at the end, say all calls made."""
    base = request["base"]
    trap = Trap(base, request, report)
    Seam(base, trap).install()
    saver = ds.Checkpointer(
        f"{base}/run",
        keep_last=request["keep_last"],
        arena_nbytes=ARENA_NBYTES,
        layout=request.get("layout", "auto"),
    )
    for step, seed in request["saves"]:
        saver.save_async(state(seed), step=step, metrics={"seed": seed}).result()
        report.say({"acknowledged": [step, seed]})
    saver.close()
    report.say({"calls": trap.calls()})


def save_forever(request: dict[str, Any], report: Report) -> None:
    """Save step after step until somebody kills this process."""
    saver = ds.Checkpointer(f"{request['base']}/run", keep_last=2, arena_nbytes=ARENA_NBYTES)
    step = request["from"]
    while True:
        saver.save_async(state(step), step=step).result()
        report.say({"acknowledged": [step, step]})
        step += 1


def restore_forever(request: dict[str, Any], report: Report) -> None:
    """Restore again and again until somebody kills this process."""
    reader = ds.Checkpointer(f"{request['base']}/run")
    report.say("started")
    while True:
        reader.restore()
