"""Fixtures that several test modules use."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import datastates as ds

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
