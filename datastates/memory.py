"""Memory that is ready to be written: page-aligned, in huge pages, touched.

The first touch of fresh memory costs more than filling it: 2.6 s per GiB in 4 KiB pages on the
machine this was measured on, 0.2 s in huge pages from two threads. So whatever is large is asked
for in huge pages and populated before it is used.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import resource

import numpy as np

from .grid import PAGE
from .provider import Bytes
from .workers import run_all

__all__ = ["HUGE", "address", "allocate", "available_nbytes", "populate"]

HUGE = 2 << 20
"""Size of a huge page in bytes, on the machines we know."""

_MAP_NORESERVE = 0x4000  # Linux; these three are not in the mmap module
_MADV_WIPEONFORK = 18  # Linux 4.14
_MADV_POPULATE_WRITE = 23  # Linux 5.14
_libc = ctypes.CDLL(None, use_errno=True)


def address(view: Bytes) -> int:
    """Return the address of the first byte."""
    return int(view.__array_interface__["data"][0])


def _advise(start: int, nbytes: int) -> bool:
    result = _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(nbytes), _MADV_POPULATE_WRITE)
    return bool(result == 0)


def populate(view: Bytes, threads: int = 2) -> None:
    """Fault `view` in, for writing, from several threads; its content does not change."""
    start = address(view) // PAGE * PAGE
    stop = -(-(address(view) + len(view)) // PAGE) * PAGE
    step = max(HUGE, -(-(stop - start) // threads // HUGE) * HUGE)
    ranges = [(at, min(step, stop - at)) for at in range(start, stop, step)]
    done: list[bool] = []
    tasks = [lambda r=r: done.append(_advise(*r)) for r in ranges]
    run_all(tasks, threads, "datastates-touch")
    if not all(done):  # an older kernel: touch one byte of each page
        view[::PAGE] |= np.uint8(0)


def allocate(nbytes: int) -> Bytes:
    """Return `nbytes` of page-aligned private memory; it goes when the array and its views go.

    None of it is taken from the system before it is touched. Large memory is empty in a forked
    process: a data loader's workers would otherwise make the next write to each page copy it.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    area = mmap.mmap(-1, max(nbytes, 1), flags=flags)
    if nbytes >= HUGE:
        area.madvise(mmap.MADV_HUGEPAGE)
        area.madvise(_MADV_WIPEONFORK)
    return np.frombuffer(area, np.uint8, nbytes)


def available_nbytes() -> int:
    """Return the memory that this process may still take, as the system tells it."""
    return int(min(_free_nbytes(), _address_space_nbytes()))


def _address_space_nbytes() -> float:
    """Return what `ulimit -v` leaves."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return math.inf
    with open("/proc/self/statm", encoding="ascii") as file:
        return max(0, limit - int(file.read().split()[0]) * mmap.PAGESIZE)


def _free_nbytes() -> int:
    pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    free = pages * size
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = next(line for line in lines if line.startswith("MemAvailable"))
        free = int(found.split()[1]) * 1024
        limit, used = (
            open(f"/sys/fs/cgroup/memory.{name}", encoding="ascii").read().strip()  # noqa: SIM115
            for name in ("max", "current")
        )
        return free if limit == "max" else max(0, min(free, int(limit) - int(used)))
    except (OSError, StopIteration, ValueError):
        return free
