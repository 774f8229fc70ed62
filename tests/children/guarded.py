"""Reads a directory that may be hostile, and tells what it cost and what it touched."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import sys
import warnings
import zoneinfo
from collections.abc import Callable
from time import monotonic, process_time
from typing import Any

import numpy as np
import torch
from savers import Report

import datastates as ds

HANG_S = 10
"""Seconds after which a call is killed."""

SAFETY_NET_NBYTES = 6 << 30
"""Address space beyond which the child is refused memory, so that a bomb cannot hurt others."""

HARMLESS = {"builtins.id", "mmap.__new__", "os.listdir", "os.scandir", "sys._getframe"}
"""Audit events that neither run code nor change anything."""


class Watch:
    """Notes whatever might run code or change the system, as CPython's audit events tell it."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._on = False
        sys.addaudithook(self._hook)

    def start(self) -> None:
        """From now on."""
        self._on = True

    def stop(self) -> None:
        """No longer."""
        self._on = False

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._on or event in HARMLESS or "tzdata" in repr(args):
            return  # zoneinfo looks for its data in a package of that name, and in no other
        if event == "open":
            mode, flags = args[1], args[2]
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            if not writes and not set(mode or "r") & set("wax+"):
                return
        self.seen.append(f"{event} {args!r:.100}")


def _memory(field: str) -> int:
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def target() -> dict[str, Any]:
    """Return a target for the state that hostile checkpoints pretend to be."""
    return {
        "model": {"w": np.zeros(20_000), "b": np.zeros(7, np.float32), "t": torch.zeros(3, 4)},
        "log": [0, "", None, (1, 2.5)],
        "rng": ds.RNG(),
    }


def _calls(location: str, trust: bool = False) -> dict[str, Callable[[], Any]]:
    reader = ds.Checkpointer(location, read_timeout_s=20)
    return {
        "steps": reader.steps,
        "info": reader.info,
        "verify": reader.verify,
        "restore": lambda: reader.restore(trust=trust),
        "restore_into": lambda: reader.restore(into=target(), trust=trust),
    }


def _attempt(call: Callable[[], Any], watch: Watch) -> dict[str, Any]:
    """Make one call; say how it ended, what it took, and what it touched."""
    gc.collect()
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # the peak starts anew
    before, cpu, wall = _memory("VmRSS"), process_time(), monotonic()
    error: BaseException | None = None
    value: object = None
    watch.start()
    try:
        value = call()
    except BaseException as failure:
        error = failure
    watch.stop()
    cost = {"cpu_s": process_time() - cpu, "wall_s": monotonic() - wall}
    seen, watch.seen = watch.seen, []
    return cost | {
        "nbytes": _memory("VmHWM") - before,
        "error": None if error is None else type(error).__name__,
        "ours": isinstance(error, ds.DatastatesError),
        "message": str(error),
        "value": f"{value!r:.200}",
        "ok": getattr(value, "ok", None),
        "touched": seen[:10],
    }


def read(request: dict[str, Any], report: Report) -> None:
    """Make every reading call on each of `places`, after a warm-up on the harmless `warm`."""
    warnings.simplefilter("ignore")
    watch = Watch()
    for call in _calls(request["warm"]).values():
        call()
    with contextlib.suppress(Exception):  # what it needs to look for its data
        zoneinfo.ZoneInfo("America")
    limit = _memory("VmSize") + SAFETY_NET_NBYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for place in request["places"]:
        for name, call in _calls(place, request.get("trust", False)).items():
            signal.alarm(HANG_S)  # kills
            report.say([place, name, _attempt(call, watch)])
