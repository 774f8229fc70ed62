"""The yardstick: as many bytes in one preallocated file, by direct I/O from memory made for it."""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PAGE = 4096
PIECE = 16 << 20
THREADS = 8


def memory(nbytes: int) -> memoryview:
    """Return page-aligned, populated memory of `nbytes`, rounded up to whole pages."""
    area = mmap.mmap(-1, -(-nbytes // PAGE) * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(area)
    noise = os.urandom(min(len(view), 1 << 20))
    for at in range(0, len(view), len(noise)):
        view[at : at + len(noise)] = noise[: len(view) - at]
    return view


def _pieces(fd: int, data: memoryview, call) -> None:
    def move(at: int) -> None:
        stop = min(at + PIECE, len(data))
        while at < stop:
            at += call(fd, data[at:stop], at)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(move, range(0, len(data), PIECE)))


def write(path: Path, data: memoryview) -> None:
    """Write and make durable."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o644)
    try:
        os.posix_fallocate(fd, 0, len(data))
        _pieces(fd, data, os.pwrite)
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_tree(path.parent, files=False)


def read(path: Path, data: memoryview) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        _pieces(fd, data, lambda f, part, at: os.preadv(f, [part], at))
    finally:
        os.close(fd)


def sync_tree(root: Path, *, files: bool = True) -> None:
    """Sync every file below `root`, then every directory and the one above."""
    found = [path for path in root.rglob("*") if path.is_dir() or files]
    found.sort(key=lambda path: path.is_dir())
    for path in [*found, root, root.parent]:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
