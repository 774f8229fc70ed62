"""What a power cut leaves, at any moment of a save: whole steps only, the acknowledged one too.

It cannot be made for real, so the weakest disk that POSIX allows is modelled (see
`children/powercut.py`), and the order of the calls is looked at.
"""

from pathlib import Path
from typing import Any

import pytest
from children.client import Children


@pytest.mark.parametrize("layout", ["tree", "packed"])
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ([[1, 1]], None),
        ([[1, 1], [2, 2]], {"keep_last": 1, "saves": [[2, 22]]}),
        ([[1, 1], [2, 2]], {"keep_last": 2, "saves": [[3, 3], [4, 4]]}),
    ],
    ids=["first", "resave", "retention"],
)
def test_a_power_cut_at_any_moment_leaves_whole_steps_only(
    children: Children, ram: Path, layout: str, first: list[list[int]], then: dict[str, Any] | None
) -> None:
    """Case 41, on a disk that keeps nothing but what was synced, or names before contents."""
    (ram / "disk").mkdir()
    cut = {"do": "powercut", "base": str(ram / "disk"), "scratch": str(ram / "image"), "seed": 41}
    cut["layout"] = layout
    runs = [{"has": [], "keep_last": 5, "saves": first}]
    if then is not None:
        runs.append({"has": first} | then)
    for run in runs:
        answer = children.ask(**cut, **run)
        assert answer["end"] == 0
        assert answer["said"][-1]["wrong"] == []
        assert answer["said"][-1]["images"] > (40 if layout == "tree" else 15)


@pytest.mark.parametrize("layout", ["tree", "packed"])
def test_the_power_cut_model_finds_a_save_that_does_not_sync(
    children: Children, ram: Path, layout: str
) -> None:
    (ram / "disk").mkdir()
    cut = {"do": "powercut", "base": str(ram / "disk"), "scratch": str(ram / "image"), "seed": 41}
    options = {"fsync": False, "layout": layout}
    answer = children.ask(**cut, has=[], keep_last=5, saves=[[1, 1]], **options)
    assert answer["end"] == 0 and answer["said"][-1]["wrong"]


CHANGES_NAMES = ("open", "mkdir", "rename", "unlink", "rmdir")
CHANGES_BYTES = ("open", "pwrite", "ftruncate", "fallocate")


def unsynced(calls: list[tuple[str, str]]) -> set[str]:
    """Return the files and directories that were changed after their last fsync."""
    dirty: set[str] = set()
    for name, path in calls:
        if name in CHANGES_NAMES:
            dirty.add(str(Path(path).parent))
        if name in CHANGES_BYTES or name == "mkdir":
            dirty.add(path)
        if name == "fsync":
            dirty.discard(path)
        if name in ("unlink", "rmdir"):
            dirty.discard(path)
    return dirty


@pytest.mark.parametrize("layout", ["tree", "packed"])
def test_all_of_a_step_is_synced_before_its_commit_and_the_commit_before_the_answer(
    children: Children, tmp_path: Path, layout: str
) -> None:
    """Case 41. The name of the record that is about to be renamed needs no sync of its own."""
    request = {"keep_last": 3, "saves": [[1, 1], [2, 2], [2, 22]], "layout": layout}
    found = children.ask("order", base=str(tmp_path), **request)["said"][-1]["calls"]
    calls = [(name, path) for name, path in found if not path.endswith(".lease")]
    commits = [i for i, (name, path) in enumerate(calls) if name == "rename"]
    assert len(commits) == 3
    for i in commits:
        step = str(Path(calls[i][1]).parent)
        record = ("open", f"{step}/zarr.json.new")
        mine = [call for call in calls[:i] if call != record]
        assert unsynced(mine) == set()
        answered = next(j for j in range(i, len(calls)) if calls[j][0] == "acknowledged")
        assert ("fsync", step) in calls[i:answered]
    removed = calls.index(("unlink", "run/step-0000000002/zarr.json"))
    assert calls[removed + 1] == ("fsync", "run/step-0000000002")


def test_syncing_can_be_switched_off(children: Children, tmp_path: Path) -> None:
    """Case 41."""
    request = {"keep_last": 1, "saves": [[1, 1], [2, 2]], "fsync": False}
    calls = children.ask("order", base=str(tmp_path), **request)["said"][-1]["calls"]
    assert "fsync" not in {name for name, _ in calls}
