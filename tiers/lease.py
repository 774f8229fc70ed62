"""Who is writing a step: a lease file beside its directory, so that no live saver is ever swept.

The lease `step-….lease` exists from before the directory does until after the step is committed.
Its holder keeps an exclusive flock on it, which the kernel drops when the process dies, however it
dies. For the sweeper that is decisive on the same boot of the same host. A holder on another host
may be invisible to flock (some network file systems lock per host only), so there the lease must
also have stood untouched for `EXPIRY_S`; a live holder touches it as it writes.
"""

from __future__ import annotations

import errno
import fcntl
import os
from enum import Enum
from pathlib import Path
from time import monotonic, time

from .posix import write_all

EXPIRY_S = 3600.0
"""Seconds after which an untouched lease of another host, or without locks, is over."""

_TOUCH_S = 30.0
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF)


def _boot() -> bytes:
    """Name this boot of this host."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return os.uname().nodename.encode()


class Holder(Enum):
    """What can be told from here of the holder of a lease."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"
    """On another host, or without locks, and seen within `EXPIRY_S`: perhaps alive."""


def _lock(fd: int, kind: int = fcntl.LOCK_EX) -> bool | None:
    """Try to lock; None where the file system has no locks."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True


class Lease:
    """A held lease. Made by `take`; ends with `release`, or with the process."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._touched = monotonic()

    def touch(self) -> None:
        """Show that the holder is alive; cheap, called with every write."""
        now = monotonic()
        if now - self._touched > _TOUCH_S:
            self._touched = now
            os.utime(self._fd)

    def release(self) -> None:
        """Remove the lease, once. The step must be committed, or gone."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        try:
            Path(self.path).unlink(missing_ok=True)
        finally:
            os.close(fd)


def take(path: str) -> Lease | None:
    """Take the lease at `path`; None while another holder is, or may be, alive.

    Raises:
        OSError: it cannot be made.
    """
    while True:
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            locked = _lock(fd)
            if locked is False or not _is_over(fd, locked):
                os.close(fd)
                return None
            if _same(fd, path):
                os.ftruncate(fd, 0)
                write_all(fd, _boot(), 0)
                return Lease(path, fd)
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # its last holder removed it between our open and our lock


def holder(path: str) -> Holder:
    """Tell whether anyone holds the lease at `path`, without taking it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return Holder.GONE
    try:
        locked = _lock(fd, fcntl.LOCK_SH)  # shared, and for a moment: two who look do not meet
        if locked is False:
            return Holder.ALIVE
        return Holder.GONE if _is_over(fd, locked) else Holder.UNKNOWN
    finally:
        os.close(fd)


def _same(fd: int, path: str) -> bool:
    try:
        return os.fstat(fd).st_ino == os.stat(path, follow_symlinks=False).st_ino
    except FileNotFoundError:
        return False


def _is_over(fd: int, locked: bool | None) -> bool:
    """Tell whether the last holder, named in the file, is certainly gone."""
    named = os.pread(fd, 200, 0)
    if not named:
        return True
    if locked and named == _boot():
        return True
    return time() - os.fstat(fd).st_mtime > EXPIRY_S
