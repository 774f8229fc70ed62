"""Between the library and the system: sees each call that changes files below a directory.

It wraps the functions of `os` (and fallocate(2), which the library calls by way of ctypes). That
it misses none is shown by a test which compares it with strace.
"""

# ruff: noqa: PTH109, PTH115
# The calls of the `os` module are meant here, not what they are good for.

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from datastates.tiers import posix

Handler = Callable[[str, str, Callable[[], Any]], Any]
"""Gets the name of the call, the path it changes, and a function that makes the real call."""

BY_PATH = ("mkdir", "rmdir", "unlink", "remove", "chmod", "truncate", "symlink", "link", "mknod")
BY_FD = ("pwrite", "write", "pwritev", "writev", "ftruncate", "fsync", "fdatasync", "fchmod")
TWO_PATHS = ("rename", "replace")


def path_of(target: Any, dir_fd: int | None = None) -> str:
    """Return the absolute path of a path or a descriptor."""
    if isinstance(target, int):
        return os.readlink(f"/proc/self/fd/{target}")
    base = os.readlink(f"/proc/self/fd/{dir_fd}") if dir_fd is not None else os.getcwd()
    return os.path.normpath(os.path.join(base, os.fspath(target)))


class Seam:
    """Installed once per process, for good: a child's whole life is one experiment."""

    def __init__(self, base: str, handler: Handler) -> None:
        self._base, self._handler = base, handler

    def install(self) -> None:
        """Put the wrappers into `os`."""
        for name in (*BY_PATH, *BY_FD, "utime"):
            setattr(os, name, self._wrapped(name, getattr(os, name), 0))
        for name in TWO_PATHS:
            setattr(os, name, self._wrapped(name, getattr(os, name), 1))
        os.open = self._wrapped("open", os.open, 0)  # type: ignore[assignment]
        posix._libc = _Libc(posix._libc, self)  # type: ignore[assignment]

    def call(self, name: str, path: str, real: Callable[[], Any]) -> Any:
        """Hand a call to the handler if it is one below the directory."""
        if path == self._base or path.startswith(self._base + "/"):
            return self._handler(name, path, real)
        return real()

    def _wrapped(self, name: str, real: Callable[..., Any], at: int) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if name == "open" and not args[1] & (os.O_CREAT | os.O_TRUNC):
                return real(*args, **options)
            path = path_of(args[at], options.get("dir_fd"))
            return self.call(name, path, lambda: real(*args, **options))

        return call


class _Libc:
    """The C library, with its fallocate seen."""

    def __init__(self, real: Any, seam: Seam) -> None:
        self._real, self._seam = real, seam

    def fallocate(self, fd: int, *args: Any) -> Any:
        return self._seam.call("fallocate", path_of(fd), lambda: self._real.fallocate(fd, *args))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
