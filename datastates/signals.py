"""Preemption: a signal announces the end, and what was trained shall not be lost.

The handler is Python's, so it runs between two operations of the main thread; saves under way go
on meanwhile, whatever that thread does. It does not take a state by itself: in the middle of a
step there is none that is consistent. It waits for the saves under way, or leaves the trainer the
grace time to reach its next `save_async`, and then lets the signal do what it would have done:
the user's own handler runs, or the process ends by the signal.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from time import monotonic
from types import FrameType
from typing import Any

from .errors import SaveTimeoutError, UsageError

__all__ = ["Preemption"]

log = logging.getLogger("datastates")


class Preemption:
    """What a checkpointer does about signals that announce the end of the process."""

    def __init__(self, drain: Callable[[float], None]) -> None:
        """`drain` waits for the saves under way, for so many seconds, or raises."""
        self._drain = drain
        self._previous: dict[int, Any] = {}
        self._take_last: dict[int, float] = {}
        self._grace_s: dict[int, float] = {}
        self._received: int | None = None
        self._deadline = 0.0
        self._pid = os.getpid()

    @property
    def received(self) -> bool:
        """True once such a signal has come."""
        return self._received is not None

    def install(self, signum: int, grace_s: float, *, take_last: bool) -> None:
        """Handle `signum` from now on; what handled it before is called afterwards.

        Raises:
            UsageError: not in the main thread, or no signal that can be handled.
        """
        if threading.current_thread() is not threading.main_thread():
            raise UsageError("on_signal: signal handlers can be set in the main thread only")
        try:
            previous = signal.signal(signum, self._handle)
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(f"on_signal: {signum!r} cannot be handled: {error}") from error
        if previous != self._handle:
            self._previous[signum] = previous
        self._grace_s[signum] = grace_s
        self._take_last[signum] = take_last

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a forked child has no saves under way, only the handler
            self._chain(signum, frame)
            return
        if self._received is None:
            self._received = signum
            self._deadline = monotonic() + self._grace_s[signum]
            if self._take_last[signum]:
                log.warning("%s: waiting for the next save_async", _name(signum))
                self._remind(signum)
                return
        self._finish(signum, frame)

    def _remind(self, signum: int) -> None:
        """Send the signal again when the grace time is over and the trainer has not saved."""
        pid = os.getpid()
        timer = threading.Timer(self._grace_s[signum], lambda: os.kill(pid, signum))
        timer.daemon = True
        timer.name = "datastates-grace"
        timer.start()

    def saved(self) -> None:
        """End as the signal wants, if one has come and was waiting for this save."""
        signum = self._received
        if signum is not None and self._take_last[signum]:
            self._finish(signum, None)

    def _finish(self, signum: int, frame: FrameType | None) -> None:
        """Wait for the saves under way, then do what would have been done without us."""
        log.warning("%s: finishing the saves under way", _name(signum))
        waiter = threading.Thread(target=self._drain_logged, name="datastates-signal", daemon=True)
        waiter.start()  # this thread may hold any lock of ours where the signal came
        waiter.join(max(0.0, self._deadline - monotonic()))
        if waiter.is_alive():
            log.error("%s: the grace time is over before the saves are durable", _name(signum))
        self._chain(signum, frame)

    def _drain_logged(self) -> None:
        try:
            self._drain(max(0.0, self._deadline - monotonic()))
        except SaveTimeoutError as error:
            log.error("%s", error)

    def _chain(self, signum: int, frame: FrameType | None) -> None:
        previous = self._previous.get(signum, signal.SIG_DFL)
        if callable(previous):
            previous(signum, frame)
        elif previous != signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)

    def uninstall(self) -> None:
        """Put back what handled the signals before, unless someone has changed it since."""
        for signum, previous in self._previous.items():
            if signal.getsignal(signum) == self._handle and _in_main_thread():
                signal.signal(signum, signal.SIG_DFL if previous is None else previous)
        self._previous.clear()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _name(signum: int) -> str:
    return signal.Signals(signum).name
