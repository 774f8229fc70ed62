"""A fixed number of daemon threads that run tasks in order.

Not `concurrent.futures`: its threads are joined at interpreter exit without a deadline, so one
write that never returns would keep the process for ever.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from .errors import StorageTimeoutError

__all__ = ["Workers", "run_all", "within"]

Task = Callable[[], None]
T = TypeVar("T")


class Workers:
    """Threads that run what is submitted, first come, first served. Tasks must not raise."""

    def __init__(self, count: int, name: str) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{i}", daemon=True)
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            del task  # what it holds must not live on until the next one comes

    def submit(self, task: Task) -> None:
        """Run `task` on one of the threads; returns at once."""
        self._tasks.put(task)

    def close(self) -> None:
        """Let the threads end after what was submitted; does not wait for them."""
        for _ in self._threads:
            self._tasks.put(None)


def run_all(tasks: Sequence[Task], threads: int, name: str) -> None:
    """Run `tasks` on a few threads and wait for all of them; the first error is raised."""
    errors: list[BaseException] = []
    left = threading.Semaphore(0)

    def run(task: Task) -> None:
        try:
            if not errors:
                task()
        except BaseException as error:  # nobody else would tell, and the caller waits
            errors.append(error)
        left.release()

    workers = Workers(min(threads, max(1, len(tasks))), name)
    for task in tasks:
        workers.submit(lambda t=task: run(t))  # type: ignore[misc]
    workers.close()
    for _ in tasks:
        left.acquire()
    if errors:
        raise errors[0]


def within(timeout_s: float, what: str, call: Callable[[], T]) -> T:
    """Return what `call` does on a thread of its own; give it up when it takes too long.

    Raises:
        StorageTimeoutError: it has not returned; it may yet, and its result is dropped then.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name="datastates-call", daemon=True).start()
    try:
        return answer.result(timeout_s)
    except TimeoutError as error:
        if answer.done():
            raise
        raise StorageTimeoutError(f"no answer for {timeout_s:g} s: {what}") from error
