"""Facts about the machine that a number needs beside it; nothing that names it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("datastates", "torch", "numpy", "zarr", "safetensors")


def file_system(path: Path) -> str:
    """Return the type of the file system that holds `path`."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text("utf-8").splitlines():
        _, mount, found, *_ = line.split()
        inside = path.resolve().is_relative_to(mount)
        if inside and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def facts(path: Path) -> dict[str, object]:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "file_system": file_system(path),
        "versions": {name: version(name) for name in _PACKAGES},
    }
