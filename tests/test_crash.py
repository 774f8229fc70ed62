"""What is left when a saver is killed at any moment: whole steps only, the acknowledged one too.

A child process is killed at each call that changes the file system, before it and after it; that
the calls seen are all there are is checked against strace.
"""

import json
import os
import random
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from children.client import Children
from children.states import same, state

import datastates as ds

FIRST = {"keep_last": 1, "saves": [[1, 11]]}
"""The first save of a run: it makes the directories."""
AGAIN = {"keep_last": 1, "saves": [[2, 22]]}
"""A step saved again. Retention then removes its old save and step 1, and the sweep a dead one."""


@pytest.fixture(scope="module")
def prepared(children: Children, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run: steps 1 and 2, and what a killed save of step 9 has left."""
    base = tmp_path_factory.mktemp("prepared")
    done = children.ask("save", base=str(base), keep_last=5, saves=[[1, 1], [2, 2]])
    assert done["end"] == 0
    at = "rename run/step-0000000009/zarr.json 1"
    half = children.ask("save", base=str(base), keep_last=5, saves=[[9, 9]], at=at)
    assert half["end"] == -9 and (base / "run/step-0000000009/zarr.json.new").exists()
    return base


def acknowledged(answer: dict[str, Any]) -> dict[int, int]:
    return dict(line["acknowledged"] for line in answer["said"] if "acknowledged" in line)


def calls(answer: dict[str, Any]) -> list[str]:
    found: list[str] = answer["said"][-1]["calls"]
    return found


def check_steps(ckpt: ds.Checkpointer, allowed: dict[int, list[int]]) -> None:
    """Check that each step there is whole, and is one of those `allowed`: step → seeds."""
    for step in ckpt.steps():
        seed = int(ckpt.info(step).metrics["seed"])
        assert seed in allowed[step]
        assert same(ckpt.restore(step=step), state(seed))
        assert ckpt.verify(step).ok


def open_run(root: Path) -> ds.Checkpointer:
    return ds.Checkpointer(root, keep_last=1, arena_nbytes=8 << 20)


def kill_points(children: Children, base: Path, request: dict[str, Any]) -> list[str]:
    base.mkdir(exist_ok=True)
    done = children.ask("save", base=str(base), **request)
    assert done["end"] == 0 and acknowledged(done)
    return calls(done)


def kill_and_check(
    children: Children, base: Path, request: dict[str, Any], had: dict[int, int]
) -> None:
    """Kill one save, then check what is left; `had` are the steps acknowledged before it."""
    ((step, seed),), root = request["saves"], base / "run"
    answer = children.ask("save", base=str(base), **request)
    assert answer["end"] == -9, f"not killed at {request['at']}"
    allowed = {s: [x] for s, x in had.items()}
    allowed[step] = [seed] if acknowledged(answer) else [seed, *allowed.get(step, [])]
    with open_run(root) as ckpt:
        check_steps(ckpt, allowed)
        last = max(had | acknowledged(answer), default=None)
        assert last is None or last in ckpt.steps(), request["at"]
        ckpt.save(state(3), step=3, metrics={"seed": 3})
        ckpt.close()
        check_steps(ckpt, {3: [3]})
    assert [path.name for path in root.iterdir()] == [
        "step-0000000003"
    ]  # nothing of before is left


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("layout", ["tree", "packed"])
def test_a_kill_at_any_call_of_a_first_save_leaves_no_step_or_the_whole_one(
    children: Children, tmp_path: Path, layout: str
) -> None:
    first = FIRST | {"layout": layout}
    points = kill_points(children, tmp_path / "model", first)
    assert len(points) > (50 if layout == "tree" else 25)
    for i, at in enumerate(points):
        base = tmp_path / str(i)
        base.mkdir()
        mode = ("before", "after")[i % 2]
        kill_and_check(children, base, first | {"at": at, "mode": mode}, {})
        shutil.rmtree(base)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", [pytest.param("before", marks=pytest.mark.extended), "after"])
def test_a_kill_at_any_call_of_resave_retention_and_sweep_leaves_whole_steps_only(
    children: Children, prepared: Path, ram: Path, mode: str
) -> None:
    shutil.copytree(prepared, ram / "model")
    points = kill_points(children, ram / "model", AGAIN)
    gone = {"step-0000000001", "step-0000000002", "step-0000000009"}
    assert gone <= {part for at in points if "rmdir" in at for part in re.split("[ /]", at)}
    for i, at in enumerate(points):
        base = ram / str(i)
        shutil.copytree(prepared, base)
        kill_and_check(children, base, AGAIN | {"at": at, "mode": mode}, {1: 1, 2: 2})
        shutil.rmtree(base)


def test_a_saver_killed_at_random_times_leaves_less_than_a_state_behind(
    children: Children, tmp_path: Path
) -> None:
    """Case 51."""
    chance, root, newest = random.Random(51), tmp_path / "run", 0
    for _ in range(5):
        request = {"base": str(tmp_path), "from": newest + 1, "limit_s": chance.uniform(0.05, 0.4)}
        answer = children.ask("save_forever", **request)
        assert answer["end"] == -9
        newest = max([newest, *acknowledged(answer)])
        with open_run(root) as ckpt:
            steps = ckpt.steps()
            assert newest == 0 or newest in steps
            assert all(same(ckpt.restore(step=step), state(step)) for step in steps)
        newest = max([newest, *steps])
    with open_run(root) as ckpt:
        stats = ckpt.save(state(newest + 1), step=newest + 1)
    assert ckpt.steps() == [newest + 1]
    left = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    assert left < 2 * stats.nbytes


def test_what_a_live_saver_of_another_process_writes_is_left_alone(
    children: Children, tmp_path: Path
) -> None:
    """Cases 51 and 88."""
    at = "rename run/step-0000000005/zarr.json 1"
    request = {"keep_last": 2, "saves": [[5, 5]], "at": at, "mode": "pause"}
    paused = children.ask("save", base=str(tmp_path), **request)
    assert paused["end"] is None
    with ds.Checkpointer(tmp_path / "run", keep_last=1) as other:
        other.save({"x": 1}, step=4)
        assert other.prune() == [] and other.steps() == [4]
    resumed = children.ask(resume=paused["pid"])
    assert resumed["end"] == 0 and acknowledged(resumed) == {5: 5}
    with ds.Checkpointer(tmp_path / "run") as reader:
        assert reader.steps() == [4, 5]
        assert same(reader.restore(step=5), state(5))


# Restore.


def snapshot(root: Path) -> dict[str, tuple[int, ...]]:
    """Return what lies below `root`, with all that a change would change."""
    found = {}
    for path in [root, *root.rglob("*")]:
        stat = path.lstat()
        found[str(path)] = (stat.st_ino, stat.st_size, stat.st_mode, stat.st_mtime_ns)
    return found


def test_a_killed_restore_changes_nothing_and_the_next_one_works(
    children: Children, prepared: Path, tmp_path: Path
) -> None:
    """Case 69, on a directory that nobody may write to (root may, but does not)."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    root = tmp_path / "run"
    for path in [*root.rglob("*"), root]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before, chance = snapshot(root), random.Random(69)
    for _ in range(10):
        limit_s = chance.uniform(0.02, 0.15)
        answer = children.ask("restore_forever", base=str(tmp_path), limit_s=limit_s)
        assert answer["end"] == -9
        assert snapshot(root) == before
    with ds.Checkpointer(root) as reader:
        assert same(reader.restore(), state(2))
    assert snapshot(root) == before
    for path in [root, *root.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


# Nothing escapes the seam.

TRACED = (
    "open,openat,openat2,creat,mkdir,mkdirat,rmdir,unlink,unlinkat,rename,renameat,renameat2,"
    "link,linkat,symlink,symlinkat,mknod,mknodat,truncate,ftruncate,fallocate,write,pwrite64,"
    "writev,pwritev,pwritev2,copy_file_range,sendfile,splice,chmod,fchmod,fchmodat,chown,fchown,"
    "fchownat,utimensat,setxattr,fsetxattr,fsync,fdatasync,sync_file_range,io_uring_enter,io_submit"
)
SAME = {"openat": "open", "pwrite64": "pwrite", "mkdirat": "mkdir", "renameat2": "rename"}
CALL = re.compile(r"\d+ +(\w+)\((.*)")


def traced_calls(log: str, base: Path) -> Counter[str]:
    """Return the calls below `base` that strace saw, written as the seam writes them."""
    found: Counter[str] = Counter()
    for line in log.splitlines():
        match = CALL.match(line)
        if match is None or str(base) not in line:
            continue
        name, arguments = SAME.get(match[1], match[1]), match[2]
        if name == "open" and not re.search("O_CREAT|O_TRUNC", arguments):
            continue
        if name == "unlinkat":
            name = "rmdir" if "AT_REMOVEDIR" in arguments else "unlink"
        found[f"{name} {os.path.relpath(target(arguments), base)}"] += 1
    return found


def target(arguments: str) -> str:
    """Return the path that a call changes: quoted, below a directory, or an fd's."""
    quoted = re.findall(r'"((?:[^"\\]|\\.)*)"', arguments)
    described = re.match(r"(?:AT_FDCWD|\d+)<([^>]*)>", arguments)
    inner = quoted[-1] if quoted and not arguments.startswith(tuple("0123456789")) else ""
    if described is None:
        return inner or quoted[-1]
    below = re.match(r'\d+<[^>]*>, "([^"]*)", (?:0|AT_REMOVEDIR)', arguments)
    return os.path.join(described[1], below[1] if below else inner)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_the_seam_misses_no_call_that_changes_the_file_system(
    children: Children, prepared: Path, tmp_path: Path
) -> None:
    base, log = tmp_path / "base", tmp_path / "log"
    shutil.copytree(prepared, base)
    strace = ["strace", "-f", "--seccomp-bpf", "-y", "-qq", "-s", "0", "-o", str(log)]
    strace += ["-e", f"trace={TRACED}"]
    probe = subprocess.run([*strace, "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"strace does not work here: {probe.stderr.decode()[-200:]}")
    request = json.dumps({"do": "save", "base": str(base), **AGAIN})
    command = [*strace, *children.command]
    options = {"input": request, "stdout": subprocess.PIPE, "env": children.environment}
    done = subprocess.run(command, check=True, text=True, **options)
    seen = Counter(key.rpartition(" ")[0] for key in calls(json.loads(done.stdout)))
    assert traced_calls(log.read_text(), base) == seen
