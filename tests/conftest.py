"""Fixtures that several test modules use."""

import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from children.client import Children
from cli_support import save
from click.testing import CliRunner, Result
from device_support import ORDERS
from device_support import checkpointer as on_devices
from hypothesis import settings

import datastates as ds
from datastates.cli import main
from datastates.testing import FakeDevice, GatedTier
from datastates.tiers.memory import MemoryTier

settings.register_profile("busy", deadline=None)  # other work on the machine is no failure
settings.load_profile("busy")

PLACES = ("memory", "directory")


@pytest.fixture
def make_ckpt(tmp_path: Path) -> Iterator[Callable[..., ds.Checkpointer]]:
    """Make checkpointers on a place of this test's own; each is closed at its end."""
    made: list[ds.Checkpointer] = []

    def make(place: str = "directory", **options: Any) -> ds.Checkpointer:
        location = tmp_path / "run" if place == "directory" else f"memory://{tmp_path}"
        made.append(ds.Checkpointer(location, **{"arena_nbytes": 64 << 20} | options))
        return made[-1]

    yield make
    for checkpointer in made:
        checkpointer.close()


@pytest.fixture(params=PLACES)
def ckpt(
    request: pytest.FixtureRequest, make_ckpt: Callable[..., ds.Checkpointer]
) -> ds.Checkpointer:
    """An empty checkpointer, once in memory and once in a directory."""
    return make_ckpt(request.param)


@pytest.fixture
def memory_ckpt(make_ckpt: Callable[..., ds.Checkpointer]) -> ds.Checkpointer:
    """An empty checkpointer in memory, for what does not depend on the storage."""
    return make_ckpt("memory")


@pytest.fixture
def disk_ckpt(make_ckpt: Callable[..., ds.Checkpointer]) -> ds.Checkpointer:
    """An empty checkpointer in a directory."""
    return make_ckpt("directory")


@pytest.fixture(scope="session")
def children() -> Iterator[Children]:
    """The server of child processes; the children themselves end with each request."""
    made = Children()
    yield made
    made.close()


@pytest.fixture
def ram() -> Iterator[Path]:
    """A directory in memory where there is one: what is tried hundreds of times needs no disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as made:
        yield Path(made)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Run the command line in this process, in a directory of this test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*arguments: object, **options: Any) -> Result:
        words = [str(argument) for argument in arguments]
        return CliRunner().invoke(main, words, catch_exceptions=False, **options)

    return run


@pytest.fixture
def three_steps(tmp_path: Path) -> Path:
    """A run with steps 1 to 3; the best by loss is step 2, by accuracy step 3."""
    for step, loss in ((1, 3.0), (2, 1.5), (3, 2.0)):
        state = {"model": {"w": torch.full((4, 3), float(step)), "b": torch.zeros(3)}, "n": step}
        save(tmp_path / "run", state, step, metrics={"loss": loss, "acc": step / 4})
    return tmp_path / "run"


class Script:
    """A Python process that a test talks to by lines; gone at the end of the test."""

    def __init__(self, code: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            text=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def line(self, timeout_s: float = 60.0) -> str:
        """Return the next line it prints."""
        line = self._lines.get(timeout=timeout_s)
        assert line is not None, self.process.stderr.read() if self.process.stderr else ""
        return line

    def tell(self, line: str = "go on") -> None:
        """Write a line to its input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self, timeout_s: float = 60.0) -> str:
        """Wait for a good end; return what it wrote to stderr."""
        assert self.process.stderr is not None
        self.process.wait(timeout_s)
        said = self.process.stderr.read()
        assert self.process.returncode == 0, said
        return said

    def kill(self) -> None:
        """Kill it, as a power cut would."""
        self.process.kill()
        self.process.wait()
        self._listener.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Script]]:
    """Start Python processes from source code; each is killed at the end of the test."""
    made: list[Script] = []

    def start(code: str, *arguments: object) -> Script:
        made.append(Script(textwrap.dedent(code), *arguments))
        return made[-1]

    yield start
    for script in made:
        script.kill()


class Held:
    """A checkpointer whose arena of 8 MiB drains only while the test lets it."""

    def __init__(self, **options: Any) -> None:
        self.tier = GatedTier(MemoryTier(str(uuid4())), "write")
        self.ckpt = ds.Checkpointer(self.tier, **{"arena_nbytes": 8 << 20} | options)

    def go_on(self) -> None:
        """Let writes pass."""
        self.tier.gate.set()

    def stop(self) -> None:
        """Let them wait again."""
        self.tier.gate.clear()
        self.tier.reached.clear()

    def ended(self, save: ds.Save, timeout_s: float = 30.0) -> ds.Save:
        """Return the save once it has ended, well or not."""
        with contextlib.suppress(ds.SaveError):
            save.result(timeout_s)
        assert save.done()
        return save


@pytest.fixture
def hold() -> Iterator[Callable[..., Held]]:
    """Make checkpointers that are held; each goes on, and is closed, at the end of the test."""
    made: list[Held] = []

    def make(**options: Any) -> Held:
        made.append(Held(**options))
        return made[-1]

    yield make
    for each in made:
        each.go_on()
        each.ckpt.close()


@pytest.fixture
def held(hold: Callable[..., Held]) -> Held:
    """One with default options."""
    return hold()


@pytest.fixture
def make() -> Iterator[Callable[..., ds.Checkpointer]]:
    """Make checkpointers in memory that take arrays of a fake device; each is closed at its end."""
    made: list[ds.Checkpointer] = []

    def make(*arguments: Any, **options: Any) -> ds.Checkpointer:
        made.append(on_devices(*arguments, **options))
        return made[-1]

    yield make
    for each in made:
        each.close(30)


@pytest.fixture(params=ORDERS)
def device(request: pytest.FixtureRequest) -> Iterator[FakeDevice]:
    """A fake device, in each of several orders."""
    made = FakeDevice(ORDERS[request.param])
    yield made
    assert made.pins.faults == [] and made.pageable == 0


@pytest.fixture
def any_device() -> Iterator[FakeDevice]:
    """A fake device, for what does not depend on the order."""
    made = FakeDevice()
    yield made
    assert made.pins.faults == [] and made.pageable == 0
