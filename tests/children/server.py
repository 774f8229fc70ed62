"""A process that has imported everything once, and runs each request in a fork of itself.

So a test can kill hundreds of real processes in the middle of a save without paying for hundreds
of imports. One JSON line a request on stdin, one JSON line an answer on stdout. The server itself
never starts a thread: forking is only safe from a process that has a single one.

Request: `do` names a task below; `limit_s` kills the child after that time (30 s by default);
`resume` lets a child go on that has paused. Answer: `said`, the lines that the child reported in
order, and `end`: its exit code, minus the signal that killed it, or None while it is paused.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import guarded
import powercut
import savers

from datastates.locations import open_tier
from datastates.registry import installed

Request = dict[str, Any]
TASKS: dict[str, Callable[[Request, savers.Report], None]] = {
    "save": savers.save,
    "save_forever": savers.save_forever,
    "restore_forever": savers.restore_forever,
    "powercut": powercut.simulate,
    "order": powercut.order,
    "read": guarded.read,
}


class Child:
    """A fork that works on one request."""

    def __init__(self, request: Request) -> None:
        self._output, write = os.pipe()
        control, self._control = os.pipe()
        self._buffer = b""
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._output)
            os.close(self._control)
            _work(request, savers.Report(write, control))
        os.close(write)
        os.close(control)

    def resume(self) -> None:
        """Let a paused child go on."""
        os.write(self._control, b"\n")

    def wait(self, limit_s: float) -> Request:
        """Collect what it says until it ends or pauses; kill it when the time is over."""
        deadline, said = monotonic() + limit_s, []
        while True:
            line = self._line(deadline)
            if line is None:
                break
            said.append(json.loads(line))
            if said[-1] == "paused":
                return {"said": said[:-1], "end": None, "pid": self.pid}
        _, status = os.waitpid(self.pid, 0)
        os.close(self._output)
        os.close(self._control)
        return {"said": said, "end": os.waitstatus_to_exitcode(status), "pid": self.pid}

    def _line(self, deadline: float) -> bytes | None:
        """Return the next line; None at the child's end."""
        while b"\n" not in self._buffer:
            if not select.select([self._output], [], [], max(0.0, deadline - monotonic()))[0]:
                os.kill(self.pid, signal.SIGKILL)
                deadline = monotonic() + 10
                continue
            data = os.read(self._output, 1 << 16)
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def _work(request: Request, report: savers.Report) -> None:
    code = 1
    try:
        TASKS[request["do"]](request, report)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Serve until stdin ends."""
    installed()  # imports the providers, and with them torch
    open_tier("nowhere")
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "an import has started a thread"
    gc.freeze()  # a child's collector need not look at, and copy, what is here already
    paused: dict[int, Child] = {}
    for text in sys.stdin:
        request = json.loads(text)
        pid = request.pop("resume", None)
        child = Child(request) if pid is None else paused.pop(pid)
        if pid is not None:
            child.resume()
        answer = child.wait(request.get("limit_s", 30.0))
        if answer["end"] is None:
            paused[child.pid] = child
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
