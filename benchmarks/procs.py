"""What a process and all that it started use, as /proc tells."""

from __future__ import annotations

import os
import re
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """Return the process and its living descendants, itself first."""
    found = [pid]
    for at in found:  # grows while it is walked
        for path in Path(f"/proc/{at}/task").glob("*/children"):
            found += map(int, _read(path).split())
    return found


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and of its children that it has waited for."""
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS


def memory_nbytes(pid: int) -> int:
    """Return what a tree of processes holds in memory, files apart.

    Memory that is shared within the tree is counted once: as the largest part of it that any of
    them has touched.
    """
    texts = [_read(Path(f"/proc/{found}/status")) for found in tree(pid)]
    return sum(_kb("RssAnon", t) for t in texts) + max(_kb("RssShmem", t) for t in texts)


def _kb(field: str, text: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", text)
    return int(found[1]) << 10 if found else 0


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:  # it has ended meanwhile
        return ""
