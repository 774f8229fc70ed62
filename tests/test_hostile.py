"""A hostile directory ends in a clear error: nothing runs, nothing is written, it costs little.

Each step of `hostile_files`, `hostile_bombs` and `hostile_values` is read in another process by
every reading call: `steps`, `info`, `verify`, `restore` without a target and into one. The process
notes what CPython's audit events tell of code that is run, imported or opened for writing
(`children/guarded.py`).
"""

import pickle
import shutil
from pathlib import Path
from typing import Any

import hostile_bombs
import hostile_files
import hostile_values
import numpy as np
import pytest
import torch
from children.client import Children
from forging import RESTORES, STEP, ImpossibleError, in_state, node

import datastates as ds

CASES = hostile_files.CASES | hostile_bombs.CASES | hostile_values.CASES
CALLS = {"steps", "info", "verify", "restore", "restore_into"}
MAX_CPU_S, MAX_WALL_S, MAX_NBYTES = 1.0, 10.0, 256 << 20
"""What one call may cost. The second is one of processor time: the machine may be busy."""


@pytest.fixture(scope="module", params=["tree", "packed"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one checkpoint, into which `children/guarded.py` has a target."""
    base = tmp_path_factory.mktemp("saved")
    model = {
        "w": np.arange(20_000.0),
        "b": np.arange(7, dtype=np.float32),
        "t": torch.ones(3, 4),
    }
    state = {"model": model, "log": [1, "text", None, (1, 2.5)], "rng": ds.RNG()}
    for name in ("warm", "run"):
        with ds.Checkpointer(base / name, arena_nbytes=8 << 20, layout=request.param) as ckpt:
            ckpt.save(state, step=1)
    return base


def listing(root: Path) -> list[tuple[Any, ...]]:
    """Return all that is in a tree, with what a change would change."""
    found = []
    for path in sorted([root, *root.rglob("*")]):
        s = path.lstat()
        found.append((str(path), s.st_ino, s.st_mode, s.st_size, s.st_mtime_ns))
    return found


@pytest.fixture
def base(saved: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint, to be forged."""
    shutil.copytree(saved, tmp_path / "base")
    return tmp_path / "base"


def check(name: str, outcome: dict[str, Any], *, refused: bool) -> None:
    """Check what one call of one case did."""
    assert outcome["touched"] == [], (name, outcome)
    assert outcome["error"] is None or outcome["ours"], (name, outcome)
    assert outcome["cpu_s"] < MAX_CPU_S and outcome["wall_s"] < MAX_WALL_S, (name, outcome)
    assert outcome["nbytes"] < MAX_NBYTES, (name, outcome)
    assert len(outcome["message"]) < 1000, (name, outcome)
    bad = outcome["error"] is not None or outcome["ok"] is False
    assert bad or not refused, (name, outcome)


class Outcomes:
    """What each call did with each hostile step."""

    def __init__(self, children: Children, saved: Path, base: Path) -> None:
        self.impossible: dict[str, str] = {}
        self.calls: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in CASES}
        before = {name: listing(self._forge(name, saved, base)) for name in CASES}
        left = [name for name in CASES if name not in self.impossible]
        while left:  # a child that dies is followed by one that goes on after that step
            places = [str(base / name / "run") for name in left]
            answer = children.ask("read", warm=str(saved / "warm"), places=places, limit_s=200)
            for place, call, outcome in answer["said"]:
                self.calls[Path(place).parent.name][call] = outcome
            left = [name for name in left if len(self.calls[name]) < len(CALLS)][1:]
        self.changed = {name for name in CASES if listing(base / name) != before[name]}

    def _forge(self, name: str, saved: Path, base: Path) -> Path:
        shutil.copytree(saved / "run", base / name / "run")
        try:
            CASES[name][0](base / name / "run" / STEP)
        except ImpossibleError as error:
            self.impossible[name] = str(error)
        return base / name


@pytest.fixture(scope="module")
def outcomes(children: Children, saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return Outcomes(children, saved, tmp_path_factory.mktemp("forged"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_a_hostile_step_is_refused_at_once_and_runs_nothing(outcomes: Outcomes, name: str) -> None:
    if name in outcomes.impossible:
        pytest.skip(outcomes.impossible[name])
    found, (_, refused) = outcomes.calls[name], CASES[name]
    assert set(found) == CALLS, f"killed the reader, or hung, after {list(found)}"
    assert name not in outcomes.changed
    for call, outcome in found.items():
        check(call, outcome, refused=call in refused)


def test_the_guard_sees_code_that_runs(children: Children, base: Path) -> None:
    bomb = pickle.dumps(hostile_values.Bomb())
    in_state(node("objects", ["pickle", bomb]))(base / "run" / STEP)
    places = {"warm": str(base / "warm"), "places": [str(base / "run")]}
    for _, call, outcome in children.ask("read", trust=True, **places)["said"]:
        touched = " ".join(outcome["touched"])
        assert ("pickle.find_class" in touched and "os.system" in touched) == (call in RESTORES)


def test_a_hostile_newest_step_is_passed_over_loudly(base: Path) -> None:
    """Case 68."""
    root = base / "run"
    shutil.copytree(root / STEP, root / "step-0000000002")
    (root / "step-0000000002/.datastates/manifest.0/c.0").write_bytes(b"hostile")
    with ds.Checkpointer(root) as ckpt:
        with pytest.warns(RuntimeWarning, match="step 2 is damaged.*falling back to step 1"):
            assert ckpt.restore()["log"] == [1, "text", None, (1, 2.5)]
        with pytest.raises(ds.CorruptError):
            ckpt.restore(step=2)


def test_a_step_that_is_a_link_is_neither_followed_nor_removed(
    base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, outside = base / "run", base / "outside"
    shutil.copytree(root / STEP, outside)
    (root / "step-0000000000").symlink_to(outside)
    (root / "step-0000000009").symlink_to(outside)
    before = listing(outside)
    with ds.Checkpointer(root, keep_last=1, arena_nbytes=8 << 20) as ckpt:
        with pytest.warns(RuntimeWarning, match="step 9 is damaged.*a link"):
            ckpt.restore()
        ckpt.save({"x": 1}, step=10)
        with pytest.raises(ds.StorageError, match="a link"):
            ckpt.delete(9)
    assert listing(outside) == before and "it is a link" in caplog.text
