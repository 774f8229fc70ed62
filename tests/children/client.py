"""The test's side of `server.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


class Children:
    """Real processes, forked from one that has everything imported."""

    command = (sys.executable, str(Path(__file__).parent / "server.py"))
    """Starts the server."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    """With which no import starts a thread."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.environment,
            text=True,
        )

    def ask(self, do: str = "", **request: Any) -> dict[str, Any]:
        """Make one request, and return the answer when the child has ended or paused."""
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps({"do": do} | request) + "\n")
        self._server.stdin.flush()
        answer: dict[str, Any] = json.loads(self._server.stdout.readline())
        return answer

    def close(self) -> None:
        """End the server."""
        self._server.communicate(timeout=30)
