"""Who is writing a step: dead savers' remains go, and a live one's never, whoever looks."""

import errno
import fcntl
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import datastates as ds
from datastates.testing import sample_step
from datastates.tiers import lease
from datastates.tiers.zarr import ZarrTier

SAVER = """
import sys
from datastates.testing import sample_step
from datastates.tiers.zarr import ZarrTier
root, number, moment = sys.argv[1:]
step = sample_step(limit_nbytes=1 << 20)
writer = ZarrTier(root).begin(int(number), step.plan)
todo = list(step.plan.segments)
writer.write(todo[0], step.data(todo.pop(0)))
while moment != "write" and todo:
    writer.write(todo[0], step.data(todo.pop(0)))
if moment == "commit":
    writer.seal(step.manifest)
print("stuck", flush=True)
for line in sys.stdin:
    for segment in todo:
        writer.write(segment, step.data(segment))
    if moment != "commit":
        writer.seal(step.manifest)
    writer.commit(step.record(int(number)))
    print("saved", flush=True)
"""
"""Saves a step, and stops in the middle of it until it is told to go on."""

Start = Callable[..., Any]


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def nbytes(root: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in root.rglob("*"))


def age(path: Path, seconds: float) -> None:
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


# Whole savers.


def test_what_killed_savers_left_is_swept_by_the_next_one(start: Start, tmp_path: Path) -> None:
    """Case 51: five are killed in the middle of a save; a live one is left alone all the while."""
    live = start(SAVER, tmp_path, 77, "seal")
    moments = ("write", "seal", "commit", "write", "commit")
    dying = [start(SAVER, tmp_path, step, moment) for step, moment in enumerate(moments)]
    assert {script.line() for script in (live, *dying)} == {"stuck"}
    for script in dying:
        script.kill()
    halves = [name for name in names(tmp_path) if not name.endswith(".lease")]
    assert halves == [*(f"step-000000000{i}" for i in range(5)), "step-0000000077"]
    with ds.Checkpointer(tmp_path) as ckpt:
        assert ckpt.steps() == []
        one = ckpt.save({"a": np.ones(200_000)}, step=9).nbytes
    assert names(tmp_path) == ["step-0000000009", "step-0000000077", "step-0000000077.lease"]
    assert nbytes(tmp_path / "step-0000000009") < 2 * one
    live.tell()
    assert live.line() == "saved"
    with ds.Checkpointer(tmp_path) as ckpt:
        assert ckpt.steps() == [9, 77] and ckpt.verify(77).ok
    assert names(tmp_path) == ["step-0000000009", "step-0000000077"]


def test_the_step_of_a_killed_saver_can_be_saved_at_once(start: Start, tmp_path: Path) -> None:
    """Under its plain name, and with nothing left of the first attempt."""
    script = start(SAVER, tmp_path, 5, "commit")
    assert script.line() == "stuck"
    script.kill()
    with ds.Checkpointer(tmp_path) as ckpt:
        ckpt.save({"c": 1}, step=5)
        assert ckpt.restore() == {"c": 1}
    assert names(tmp_path) == ["step-0000000005"]
    assert sorted(p.name for p in (tmp_path / "step-0000000005").iterdir()) == [
        ".datastates",
        "zarr.json",
    ]


def test_a_step_that_another_process_is_saving_is_saved_beside_it(
    start: Start, tmp_path: Path
) -> None:
    """The one that began later wins, and neither hurts the other."""
    script = start(SAVER, tmp_path, 5, "commit")
    assert script.line() == "stuck"
    with ds.Checkpointer(tmp_path) as ckpt:
        ckpt.save("later", step=5)
        assert ckpt.restore() == "later"
        script.tell()
        assert script.line() == "saved"
        assert ckpt.restore() == "later"


def test_a_stopped_saver_is_alive(start: Start, tmp_path: Path) -> None:
    """SIGSTOP, a debugger or a full node: however long it stands, it may go on."""
    script = start(SAVER, tmp_path, 5, "seal")
    assert script.line() == "stuck"
    os.kill(script.process.pid, signal.SIGSTOP)
    age(tmp_path / "step-0000000005.lease", 10 * lease.EXPIRY_S)
    assert ZarrTier(str(tmp_path)).sweep() == []
    (half,) = ZarrTier(str(tmp_path)).incomplete()
    assert half.alive and half.reason == "it is being written now"
    os.kill(script.process.pid, signal.SIGCONT)
    script.tell()
    assert script.line() == "saved"


@pytest.mark.parametrize("moment", ["seal", "commit"])
def test_a_lease_without_its_step_is_cleared_away(
    start: Start, tmp_path: Path, moment: str
) -> None:
    """Killed right before its directory was made, or right after the commit."""
    script = start(SAVER, tmp_path, 5, moment)
    assert script.line() == "stuck"
    script.kill()
    path = tmp_path / "step-0000000005"
    if moment == "seal":
        shutil.rmtree(path)
    else:
        (path / "zarr.json").write_text("committed, as far as the sweeper can see")
    assert ZarrTier(str(tmp_path)).sweep() == []
    assert names(tmp_path) == ([] if moment == "seal" else ["step-0000000005"])


def test_a_step_is_deleted_although_a_dead_saver_left_its_lease(
    start: Start, tmp_path: Path
) -> None:
    with ds.Checkpointer(tmp_path) as ckpt:
        ckpt.save({"a": np.ones(10)}, step=5)
        (tmp_path / "step-0000000005.lease").write_bytes(lease._boot())
        ckpt.delete(5)
    assert names(tmp_path) == []


def test_a_new_save_is_never_taken_for_the_step_that_is_being_deleted(tmp_path: Path) -> None:
    """The record is gone, the bytes are not yet, and the step is saved anew meanwhile."""
    deleter, saver = ZarrTier(str(tmp_path)), ZarrTier(str(tmp_path))
    old = sample_step(1).put(deleter, 5)
    (tmp_path / "step-0000000005/zarr.json").unlink()  # so far the deleter has come
    new = sample_step(2)
    writer = saver.begin(5, new.plan)
    deleter.delete(old)
    for segment in new.plan.segments:
        writer.write(segment, new.data(segment))
    writer.seal(new.manifest)
    entry = writer.commit(new.record(5))
    with saver.open(entry) as reader:
        for extent in new.extents():
            out = np.empty(extent.nbytes, np.uint8)
            reader.read(extent, out)
            assert out.tobytes() == new.data(extent).tobytes()


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    strangers = ["notes.txt", "step-1", "step-00000000001", "step-0000000001.old", "x.lease"]
    for name in strangers:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("mine")
    with ds.Checkpointer(tmp_path, keep_last=1) as ckpt:
        for step in range(3):
            ckpt.save(step, step=step)
        ckpt.wait()
    assert names(tmp_path) == sorted([*strangers, "step-0000000002"])


def test_a_sweeper_in_between_does_not_change_a_steps_name(tmp_path: Path) -> None:
    """It may hold the lease of a step that is about to be made, for a moment."""
    sweeper = lease.take(str(tmp_path / "step-0000000005.lease"))
    assert sweeper is not None
    moment = threading.Timer(0.01, sweeper.release)
    moment.start()
    assert sample_step().put(ZarrTier(str(tmp_path)), 5) == ds.Entry(5)
    moment.join()


def test_a_lease_of_another_host_is_respected_though_its_step_is_not_there(tmp_path: Path) -> None:
    """It may be about to make it, on a file system that shows it later: so, another name."""
    foreign = tmp_path / "step-0000000005.lease"
    foreign.write_bytes(b"another boot of another host")
    assert sample_step().put(ZarrTier(str(tmp_path)), 5) == ds.Entry(5, 1)
    assert foreign.exists()


def test_a_step_that_cannot_be_made_leaves_no_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, save after save."""
    real = os.mkdir

    def mkdir(path: Any, *args: Any, **options: Any) -> None:
        if "step-" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, *args, **options)

    monkeypatch.setattr(os, "mkdir", mkdir)
    tier = ZarrTier(str(tmp_path))
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(ds.NoSpaceError, match="no space to make a step below"):
            tier.begin(1, sample_step().plan)
    assert names(tmp_path) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files


# The lease itself.


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "step-0000000001.lease"


def take(path: Path) -> lease.Lease | None:
    return lease.take(str(path))


def holder(path: Path) -> lease.Holder:
    return lease.holder(str(path))


def test_a_lease_has_one_holder(path: Path) -> None:
    held = take(path)
    assert held is not None
    assert take(path) is None
    assert holder(path) is lease.Holder.ALIVE
    held.release()
    assert not path.exists()
    assert holder(path) is lease.Holder.GONE
    again = take(path)
    assert again is not None
    again.release()


def test_releasing_twice_closes_nobody_elses_file(path: Path) -> None:
    held = take(path)
    assert held is not None
    held.release()
    with open(os.devnull, "rb") as other:
        held.release()
        assert os.fstat(other.fileno())


def test_of_many_who_want_a_lease_one_gets_it(path: Path) -> None:
    barrier = threading.Barrier(8)
    holders: list[lease.Lease] = []

    def want() -> None:
        for _ in range(50):
            barrier.wait(30)
            held = take(path)
            if held is not None:
                holders.append(held)
            barrier.wait(30)
            if held is not None:
                assert len(holders) == 1
                holders.clear()
                held.release()

    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_a_lease_removed_between_opening_and_locking_is_taken_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, raced = fcntl.flock, []

    def flock(fd: int, how: int) -> None:
        if not raced:
            raced.append(path.unlink())  # its last holder, just now
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    held = take(path)
    assert held is not None and path.exists()
    assert take(path) is None
    held.release()


def test_a_holder_on_another_host_is_given_an_hour(path: Path) -> None:
    """Its lock may be invisible here; its lease says which boot of which host took it."""
    path.write_bytes(b"another boot of another host")
    assert take(path) is None
    assert holder(path) is lease.Holder.UNKNOWN
    age(path, lease.EXPIRY_S + 1)
    assert holder(path) is lease.Holder.GONE
    held = take(path)
    assert held is not None
    held.release()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_locks_a_lease_counts_by_its_age(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def flock(fd: int, how: int) -> None:
        raise OSError(code, "no locks on this file system")

    monkeypatch.setattr(fcntl, "flock", flock)
    held = take(path)
    assert held is not None
    assert take(path) is None
    assert holder(path) is lease.Holder.UNKNOWN
    age(path, lease.EXPIRY_S + 1)
    assert holder(path) is lease.Holder.GONE
    held.release()


def test_other_errors_of_the_lock_are_raised(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(fd: int, how: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="broken"):
        take(path)
    with pytest.raises(ds.StorageError, match="broken"):
        ZarrTier(str(path.parent)).begin(1, sample_step().plan)


def test_a_writing_holder_shows_that_it_is_alive(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For sweepers on other hosts, who only see the time of the file."""
    now = [1000.0]
    monkeypatch.setattr(lease, "monotonic", lambda: now[0])
    held = take(path)
    assert held is not None
    age(path, 5000)
    old = path.stat().st_mtime
    held.touch()
    assert path.stat().st_mtime == old, "not with every write"
    now[0] += 31
    held.touch()
    assert path.stat().st_mtime > old + 4000
    held.release()


def test_without_a_boot_id_the_hosts_name_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> bytes:
        raise FileNotFoundError

    boot = lease._boot()
    monkeypatch.setattr(Path, "read_bytes", fail)
    assert lease._boot() == os.uname().nodename.encode() != boot


def test_a_symbolic_link_in_place_of_a_lease_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "step-0000000001.lease").symlink_to(victim)
    with pytest.raises(ds.StorageError):
        ZarrTier(str(tmp_path)).begin(1, sample_step().plan)
    assert victim.read_text() == "mine"


def test_a_lease_that_cannot_be_released_does_not_undo_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".lease":
            raise PermissionError(errno.EPERM, "not permitted")
        real(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    tier = ZarrTier(str(tmp_path))
    entry = sample_step().put(tier, 1)
    assert list(tier.entries()) == [entry]
    assert "cannot remove" in caplog.text
