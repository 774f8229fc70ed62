"""Reading and writing files at the disk's speed, and durably.

Writes go from aligned memory past the page cache, so nothing is copied a second time or written
back later. Reads take what the page cache holds, and the rest
directly. Where a file system refuses direct I/O, the same calls go through the cache.

Short reads and writes are continued, and every error names its path.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from datastates.errors import CorruptError, NoSpaceError, StorageError
from datastates.grid import PAGE, align
from datastates.memory import address, allocate
from datastates.provider import Bytes

DIRECT_NBYTES = 64 << 10
"""Shorter files, and shorter reads, go through the page cache."""

_BOUNCE_NBYTES = 2 << 20
_CACHESTAT = 451  # number of the system call, on Linux 6.5 and later
_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def translated(what: str, path: str, needed: int = 0) -> Iterator[None]:
    """Turn the system's errors into the library's, with the path; `needed` in bytes."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = free_nbytes(Path(path))
            raise NoSpaceError(
                f"no space to {what} {path}: {needed} bytes needed, {free} free"
            ) from error
        raise StorageError(f"cannot {what} {path}: {error.strerror or error}") from error


def free_nbytes(path: Path) -> int:
    """Return the free bytes of the file system that holds, or would hold, `path`."""
    while not path.exists() and path != path.parent:
        path = path.parent
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def preallocate(fd: int, nbytes: int) -> None:
    """Give the file its blocks and its size; only its size where the system cannot.

    fallocate(2) itself: glibc's posix_fallocate would write zeros where it is missing.
    """
    code = errno.EINTR
    while code == errno.EINTR:  # a signal came in between
        result = _libc.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(nbytes))
        code = ctypes.get_errno() if result else 0
    if result and code not in _REFUSED:
        raise OSError(code, os.strerror(code))
    if result:
        os.ftruncate(fd, nbytes)


def write_all(fd: int, data: bytes, offset: int) -> None:
    """Write all of a small piece, in as many calls as it takes."""
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)


def sync_path(path: str) -> None:
    """Make a file or directory durable; reports write errors that nobody was told of yet."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Files:
    """Transfers on one file system; remembers whether it takes direct I/O."""

    def __init__(self, *, direct: bool = True) -> None:
        self.direct = direct
        """Whether transfers past the page cache are tried."""
        self._local = threading.local()

    # Writing.

    def write(self, path: str, data: Bytes, offset: int, nbytes: int, *, whole: bool) -> None:
        """Write `data[:nbytes]` at `offset`; not durable before the file is synced.

        Args:
            path: of the file, which is made if need be.
            data: at least `nbytes`; past the cache if it is page-aligned to its end.
            offset: where it goes; a multiple of 4096 for a direct write.
            nbytes: how much of it counts.
            whole: it is all of the file, which ends there. Parts of a file all go the same way.
        """
        aligned = len(data) >= align(nbytes) and (address(data) | offset) % PAGE == 0
        direct = self.direct and aligned and (nbytes >= DIRECT_NBYTES or not whole)
        fd, direct = self._create(path, direct)
        try:
            padded = data[: align(nbytes)] if direct else data[:nbytes]
            self._write_all(fd, padded, offset, direct)
            if whole and len(padded) != nbytes:
                os.ftruncate(fd, offset + nbytes)
        finally:
            os.close(fd)

    def _create(self, path: str, direct: bool) -> tuple[int, bool]:
        flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        if direct:
            try:
                return os.open(path, flags | os.O_DIRECT, 0o666), True
            except OSError as error:
                if error.errno not in _REFUSED:
                    raise
                self.direct = False
        return os.open(path, flags, 0o666), False

    def _write_all(self, fd: int, data: Bytes, offset: int, direct: bool) -> None:
        done = 0
        while done < len(data):
            try:
                count = os.pwrite(fd, data[done:].data, offset + done)
            except OSError as error:
                if not direct or error.errno not in _REFUSED:
                    raise
                self.direct, count = False, 0
            if direct and done + count < len(data) and count % PAGE:
                count = count // PAGE * PAGE  # the rest of a page cannot start a direct write
            if direct and not count:
                direct = self._go_buffered(fd)
            elif not count:
                raise OSError(errno.EIO, "the file takes no more bytes")
            done += count

    @staticmethod
    def _go_buffered(fd: int) -> bool:
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT)
        return False

    # Reading.

    def read(self, directory: int, parts: tuple[str, ...], offset: int, out: Bytes) -> None:
        """Fill `out` from a file below an open directory, from `offset`.

        Raises:
            CorruptError: it is missing, too short, or no regular file.
        """
        name = "/".join(parts)
        fd = open_beneath(directory, parts)
        try:
            done = _read_cached(fd, offset, out) if _is_cached(fd, offset, len(out)) else 0
            if done < len(out) and self.direct and len(out) - done >= DIRECT_NBYTES:
                done += self._read_direct(directory, parts, offset + done, out[done:])
            while done < len(out):
                count = os.preadv(fd, [out[done:].data], offset + done)
                if not count:
                    raise CorruptError(f"{name} ends at {offset + done}, {len(out) - done} short")
                done += count
        finally:
            os.close(fd)

    def _read_direct(self, directory: int, parts: tuple[str, ...], offset: int, out: Bytes) -> int:
        """Read past the cache as far as that goes; returns the bytes read from `offset` on."""
        try:
            fd = open_beneath(directory, parts, os.O_DIRECT)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            self.direct = False
            return 0
        try:
            if (address(out) - offset) % PAGE == 0 and offset % PAGE == 0:
                return _read_aligned(fd, offset, out[: len(out) // PAGE * PAGE])
            return self._read_bounced(fd, offset, out)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            self.direct = False
            return 0
        finally:
            os.close(fd)

    def _read_bounced(self, fd: int, offset: int, out: Bytes) -> int:
        bounce: Bytes | None = getattr(self._local, "bounce", None)
        if bounce is None:
            bounce = self._local.bounce = allocate(_BOUNCE_NBYTES)
        done = 0
        while done < len(out):
            skip = (offset + done) % PAGE
            want = min(_BOUNCE_NBYTES, align(skip + len(out) - done))
            count = os.preadv(fd, [bounce[:want].data], offset + done - skip) - skip
            if count <= 0:
                break
            count = min(count, len(out) - done)
            out[done : done + count] = bounce[skip : skip + count]
            done += count
        return done


def _read_aligned(fd: int, offset: int, out: Bytes) -> int:
    done = 0
    while done < len(out):
        count = os.preadv(fd, [out[done:].data], offset + done)
        done += count
        if not count or count % PAGE:
            break
    return done


def _is_cached(fd: int, offset: int, nbytes: int) -> bool:
    """Tell whether the page cache holds half of a range; yes where the system cannot tell.

    Asked before `_read_cached`, since a read that must not wait still starts to read ahead: what
    is then read directly would be read twice.
    """
    span, found = (ctypes.c_uint64 * 2)(offset, nbytes), (ctypes.c_uint64 * 5)()
    if _libc.syscall(_CACHESTAT, fd, span, found, 0):
        return True
    return found[0] * mmap.PAGESIZE >= nbytes // 2


def _read_cached(fd: int, offset: int, out: Bytes) -> int:
    """Read what the page cache holds, without waiting for the disk; returns the bytes read."""
    done = 0
    while done < len(out):
        try:
            count = os.preadv(fd, [out[done:].data], offset + done, os.RWF_NOWAIT)
        except BlockingIOError:
            break
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            break
        if not count:
            break
        done += count
    return done


def open_beneath(directory: int, parts: tuple[str, ...], flags: int = 0) -> int:
    """Open a regular file for reading, below an open directory; follows no symbolic link.

    Raises:
        CorruptError: it is missing, or something else lies there.
        OSError: the system's word otherwise.
    """
    name = "/".join(parts)
    at = directory
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            if at != directory:
                os.close(at)
            at = inner
        fd = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | flags, dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            what = "is missing" if error.errno == errno.ENOENT else "is no regular file"
            raise CorruptError(f"{name} {what}") from error
        raise
    finally:
        if at != directory:
            os.close(at)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise CorruptError(f"{name} is no regular file")
    return fd
