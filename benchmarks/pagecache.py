"""The page cache: empty it of some files, or fill it with them, and look whether that was done."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)


def _files(root: Path) -> Iterator[int]:
    """Yield a descriptor for each file below `root`, or for that one file."""
    for path in [root, *sorted(root.rglob("*"))]:
        if path.is_file() and path.stat().st_size:
            fd = os.open(path, os.O_RDONLY)
            try:
                yield fd
            finally:
                os.close(fd)


def _resident_pages(fd: int) -> tuple[int, int]:
    nbytes = os.fstat(fd).st_size
    pages = -(-nbytes // _PAGE)
    with mmap.mmap(fd, nbytes, prot=mmap.PROT_READ) as area:
        view = np.frombuffer(area, np.uint8)
        flags = np.zeros(pages, np.uint8)
        code = _libc.mincore(
            ctypes.c_void_p(view.ctypes.data),
            ctypes.c_size_t(nbytes),
            ctypes.c_void_p(flags.ctypes.data),
        )
        del view
    if code:
        raise OSError(ctypes.get_errno(), "mincore")
    return int(np.count_nonzero(flags & 1)), pages


def resident(root: Path) -> float:
    """Return which part of the files below `root` lies in the page cache, 0 to 1."""
    found = [_resident_pages(fd) for fd in _files(root)]
    return sum(there for there, _ in found) / max(1, sum(pages for _, pages in found))


def evict(root: Path) -> float:
    """Drop the files from the page cache, by force where asking does not do it."""
    os.sync()
    for fd in _files(root):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    left = resident(root)
    if left > 0.01 and os.geteuid() == 0:
        Path("/proc/sys/vm/drop_caches").write_text("1", encoding="ascii")
        left = resident(root)
    return left


def fill(root: Path) -> float:
    """Read the files into the page cache; again, where the system has dropped some meanwhile."""
    buffer = bytearray(8 << 20)
    for _ in range(3):
        for fd in _files(root):
            at = 0
            while count := os.preadv(fd, [buffer], at):
                at += count
        if resident(root) == 1:
            break
    return resident(root)
