"""Work that a writer does beside the writes, such as small files and syncing."""

from __future__ import annotations

import threading
from collections.abc import Callable

from datastates.workers import Workers


class Background:
    """Tasks on a few threads of their own; after the first error, the others are passed over.

    1. `submit` from any thread.
    2. `check` whenever you like; `wait` before what relies on the tasks; more may follow.
    3. `stop`, once, at a good or a bad end: returns when no task runs any more.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._workers = Workers(threads, name)
        self._changed = threading.Condition()
        self._left = 0
        self._error: BaseException | None = None
        self._stopped = False

    def submit(self, task: Callable[[], None]) -> None:
        """Run `task` behind; what it raises comes out of `check` or `wait`."""
        with self._changed:
            if not self._stopped:  # the threads would never come to it
                self._left += 1
                self._workers.submit(lambda: self._run(task))

    def _run(self, task: Callable[[], None]) -> None:
        error: BaseException | None = None
        try:
            if self._error is None and not self._stopped:
                task()
        except BaseException as failure:  # nobody else would tell
            error = failure
        with self._changed:
            self._error = self._error or error
            self._left -= 1
            self._changed.notify_all()

    def check(self) -> None:
        """Raise the first error there was."""
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        """Wait for all tasks; raise the first error there was."""
        with self._changed:
            self._changed.wait_for(lambda: not self._left)
        self.check()

    def stop(self) -> None:
        """Pass over what has not begun, wait for what has, and let the threads go."""
        with self._changed:
            if not self._stopped:
                self._stopped = True
                self._workers.close()
            self._changed.wait_for(lambda: not self._left)
