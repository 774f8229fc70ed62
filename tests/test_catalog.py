"""Which steps there are, and which one a restore takes when not all of them are good."""

import functools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import support

import datastates as ds
from datastates.errors import StorageTimeoutError
from datastates.reading import READERS
from datastates.testing import CountingTier, Fault, FaultyTier, GatedTier, SlowTier, flip
from datastates.tiers.memory import MemoryTier
from datastates.tiers.zarr import ZarrTier


def memory() -> MemoryTier:
    return MemoryTier(str(uuid4()))


def state(step: int, size: int = 50_000) -> dict[str, Any]:
    return {"a": np.full(size, float(step)), "b": np.arange(10), "step": step}


def data_file(root: Path, step: int, name: str = "a") -> Path:
    (found,) = (root / f"step-{step:010d}" / name).glob("c*")
    return found


def damage(root: Path, step: int) -> None:
    file = data_file(root, step)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def everything_below(root: Path) -> list[tuple[str, int, int]]:
    return sorted((str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in root.rglob("*"))


# What is there.


def test_an_empty_place_has_no_steps(tmp_path: Path) -> None:
    with ds.Checkpointer(tmp_path / "run") as ckpt:
        assert (ckpt.steps(), ckpt.latest()) == ([], None)
        assert ckpt.best("loss") is None
        for look in (ckpt.restore, ckpt.info, ckpt.verify):
            with pytest.raises(ds.StepNotFoundError):
                look()


def test_an_unknown_step_is_refused_with_the_ones_there_are() -> None:
    with ds.Checkpointer(memory()) as ckpt:
        for step in range(8):
            ckpt.save(step, step=step)
        for look in (ckpt.restore, ckpt.info, ckpt.verify):
            with pytest.raises(ds.StepNotFoundError, match=r"step 9 .* 3, 4, 5, 6, 7") as caught:
                look(step=9)
            assert caught.value.step == 9
        with pytest.raises(ds.StepNotFoundError, match="step 9"):
            ckpt.delete(9)


def test_what_was_recorded_comes_back(tmp_path: Path) -> None:
    with ds.Checkpointer(tmp_path) as ckpt:
        ckpt.save(state(4), step=4, metrics={"loss": 2}, metadata={"commit": "abc", "n": [1, None]})
        info = ckpt.info()
        assert info == ckpt.info(4)
    assert (info.step, info.nbytes, info.metrics) == (4, 400_080, {"loss": 2.0})
    assert info.metadata == {"commit": "abc", "n": [1, None]}
    assert info.path == str(tmp_path / "step-0000000004")
    assert info.created.endswith("+00:00")


@pytest.mark.parametrize("place", ["memory", "directory"])
def test_a_step_saved_anew_after_its_removal_has_its_own_record(
    place: str, make_ckpt: Callable[..., ds.Checkpointer]
) -> None:
    """Records are read once, and the second one of a name is another one."""
    ckpt = make_ckpt(place)
    for loss in (1.0, 2.0):
        ckpt.save(loss, step=5, metrics={"loss": loss})
        assert ckpt.best("loss") == 5
        assert ckpt.info(5).metrics == {"loss": loss}
        ckpt.delete(5)
        assert ckpt.steps() == []
    ckpt.save(3, step=5, metrics={})
    with pytest.warns(RuntimeWarning, match="no step has a finite"):
        ckpt.best("loss")


def test_a_deleted_step_does_not_come_back_as_an_older_save_of_it() -> None:
    tier = FaultyTier(memory(), Fault("delete", ds.StorageError("busy")))
    with ds.Checkpointer(tier) as ckpt:
        for value in ("old", "new"):
            ckpt.save(value, step=5)
            ckpt.wait()
        assert len(list(tier.entries())) == 2, "the older save could not be removed"
        ckpt.delete(5)
        assert ckpt.steps() == [] and list(tier.entries()) == []


def test_the_newest_is_the_highest_and_not_the_best_or_the_last_saved() -> None:
    """Case 96."""
    with ds.Checkpointer(memory(), keep_best=("loss", "min", 5)) as ckpt:
        for step, loss in ((10, 1.0), (30, 9.0), (20, 5.0)):
            ckpt.save(state(step), step=step, metrics={"loss": loss})
        assert ckpt.latest() == 30 and ckpt.best() == 10
        assert ckpt.restore()["step"] == 30
        assert ckpt.recovery is not None and ckpt.recovery.step == 30


def test_the_best_needs_a_metric() -> None:
    with ds.Checkpointer(memory()) as ckpt:
        ckpt.save(1, metrics={"loss": 1.0, "score": 2.0})
        ckpt.save(1, metrics={"loss": 2.0, "score": 3.0})
        with pytest.raises(ds.UsageError, match="name a metric"):
            ckpt.best()
        assert (ckpt.best("loss"), ckpt.best("loss", "max"), ckpt.best("score", "max")) == (0, 1, 1)


def test_an_unreadable_record_does_not_spoil_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ds.Checkpointer(tmp_path) as ckpt:
        for step in range(3):
            ckpt.save(step, step=step, metrics={"loss": float(step)})
    (tmp_path / "step-0000000000/zarr.json").write_text("{}")
    with ds.Checkpointer(tmp_path) as ckpt:
        assert ckpt.best("loss") == 1
        assert "step-0000000000" in caplog.text
        with pytest.raises(ds.FormatError, match="no commit record"):
            ckpt.info(0)


def test_a_copied_run_is_the_same_run(tmp_path: Path) -> None:
    """Case 93: with `cp -rL`, and as an upload without links would do it, file by file."""
    with ds.Checkpointer(tmp_path / "run") as ckpt:
        for step in range(3):
            ckpt.save(state(step), step=step)
    subprocess.run(["cp", "-rL", str(tmp_path / "run"), str(tmp_path / "copy")], check=True)
    for file in (p for p in (tmp_path / "run").rglob("*") if p.is_file()):
        to = tmp_path / "upload" / file.relative_to(tmp_path / "run")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, to)
    shutil.rmtree(tmp_path / "run")
    for name in ("copy", "upload"):
        with ds.Checkpointer(tmp_path / name) as ckpt:
            assert ckpt.latest() == 2
            support.assert_same(ckpt.restore(), state(2))
    assert not [path for path in (tmp_path / "copy").rglob("*") if path.is_symlink()]


def test_three_thousand_steps_are_listed_once(tmp_path: Path) -> None:
    """Case 101: on a store that takes 20 ms a listing."""
    with ds.Checkpointer(tmp_path) as ckpt:
        ckpt.save(state(0), step=0)
    record = tmp_path / "step-0000000000/zarr.json"
    for step in range(1, 3000):
        made = tmp_path / f"step-{step:010d}"
        made.mkdir()
        os.link(record, made / "zarr.json")
    with ds.Checkpointer(tmp_path) as ckpt:
        ckpt.save(state(3000), step=3000)
    tier = CountingTier(SlowTier(ZarrTier(str(tmp_path)), latency_s={"entries": 0.02}))
    with ds.Checkpointer(tier) as ckpt:
        started = perf_counter()
        assert ckpt.restore()["step"] == 3000
        assert perf_counter() - started < 2
        assert tier.calls["entries"] + tier.calls["newest"] == 1
        assert len(ckpt.steps()) == 3001


POLL = """
import sys
import datastates as ds
ckpt = ds.Checkpointer(sys.argv[1])
print("polling", flush=True)
seen, looks = set(), 0
while max(seen, default=0) < int(sys.argv[2]):
    step, looks = ckpt.latest(), looks + 1
    if step is not None and step not in seen:
        state = ckpt.restore(step=step)
        assert (state["a"] == step).all() and state["step"] == step
        assert ckpt.verify(step).ok
        assert ckpt.steps()[-1] >= step
        seen.add(step)
print(looks, sorted(seen), flush=True)
"""


def test_another_process_never_sees_a_step_that_is_on_its_way(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    """Case 40: its files appear over a while; `latest` names only what restores exactly."""
    poller = start(POLL, tmp_path, 6)
    assert poller.line() == "polling"
    tier = SlowTier(ZarrTier(str(tmp_path)), latency_s=dict.fromkeys(("write", "seal"), 0.1))
    with ds.Checkpointer(tier) as ckpt:
        for step in range(1, 7):
            ckpt.save_async(state(step), step=step)
    looks, seen = poller.line().split(" ", 1)
    assert int(looks) > 20
    assert seen.endswith("6]")
    poller.end()


# Falling back.


def test_a_damaged_newest_step_gives_way_to_the_one_before(tmp_path: Path) -> None:
    """Case 68: with a warning that names both; asked for by number it is refused."""
    with ds.Checkpointer(tmp_path) as ckpt:
        for step in (1, 2, 3):
            ckpt.save(state(step), step=step)
        damage(tmp_path, 3)
        with pytest.warns(RuntimeWarning, match=r"step 3 is damaged .*: falling back to step 2"):
            support.assert_same(ckpt.restore(), state(2))
        assert ckpt.recovery is not None
        assert (ckpt.recovery.step, ckpt.recovery.damaged) == (2, (3,))
        with pytest.raises(ds.CorruptError, match="checksum") as caught:
            ckpt.restore(step=3)
        assert caught.value.key == "a"
        report = ckpt.verify(3)
        assert not report.ok and [found.name for found in report.damaged] == ["a"]
        assert ckpt.verify(2).ok


def test_when_all_steps_are_damaged_that_is_the_error(tmp_path: Path) -> None:
    with ds.Checkpointer(tmp_path) as ckpt:
        for step in (1, 2):
            ckpt.save(state(step), step=step)
            damage(tmp_path, step)
        with pytest.warns(RuntimeWarning) as warned, pytest.raises(ds.CorruptError, match="a:"):
            ckpt.restore()
    texts = [str(w.message) for w in warned]
    assert "falling back to step 1" in texts[0] and "there is no older one" in texts[1]


@pytest.mark.parametrize("what", ["manifest", "short", "missing", "directory", "record"])
def test_any_kind_of_damage_is_found(tmp_path: Path, what: str) -> None:
    """Case 56: a file that was cut is a Python error, since nothing is mapped."""
    with ds.Checkpointer(tmp_path) as ckpt:
        for step in (1, 2):
            ckpt.save(state(step), step=step)
        root, file = tmp_path / "step-0000000002", data_file(tmp_path, 2)
        if what == "manifest":
            (manifest,) = (root / ".datastates").rglob("c.0")
            manifest.write_bytes(manifest.read_bytes()[:-5] + b"xxxxx")
        elif what == "short":
            os.truncate(file, 100_000)
        elif what == "missing":
            file.unlink()
        elif what == "directory":
            file.unlink()
            file.mkdir()
        else:
            (root / "zarr.json").write_text("not JSON")
        if what == "record":  # the values are whole, and restored; only `info` needs the record
            with pytest.raises(ds.FormatError):
                ckpt.info(2)
            assert ckpt.restore()["step"] == 2
            return
        with pytest.raises(ds.CorruptError) as caught:
            ckpt.restore(step=2)
        assert caught.value.step == 2
        with pytest.warns(RuntimeWarning, match="falling back to step 1"):
            assert ckpt.restore()["step"] == 1


def test_a_step_that_vanishes_while_it_is_restored_is_not_called_damaged() -> None:
    """Retention of the saving process was faster than this reader."""
    inner = memory()
    with ds.Checkpointer(inner) as ckpt:
        for step in (1, 2):
            ckpt.save(state(step), step=step)
    tier = GatedTier(inner, "open")
    with ds.Checkpointer(tier) as reader, tier:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(reader.restore()))
        thread.start()
        assert tier.reached.wait(30)
        inner.delete(ds.Entry(2))
        tier.gate.set()
        thread.join(30)
        assert found[0]["step"] == 1
        assert reader.recovery is not None and reader.recovery.damaged == ()


@pytest.mark.parametrize("spoil", ["cut", "flip"])
def test_a_read_that_comes_back_wrong_is_made_again(spoil: str) -> None:
    """Case 53: one in fifty transfers is short, or has a wrong bit; it is right in the end."""
    from datastates import testing

    inner = memory()
    with ds.Checkpointer(inner) as ckpt:
        expected = [np.full(600_000, i) for i in range(40)]
        ckpt.save(expected)
    fault = Fault("read", spoil=getattr(testing, spoil), nth=7, again=True)
    tier = CountingTier(FaultyTier(inner, fault))
    with ds.Checkpointer(tier) as ckpt:
        support.assert_same(ckpt.restore(), expected)
        assert tier.calls["read"] > 40


def test_bytes_that_stay_wrong_are_never_handed_out() -> None:
    inner = memory()
    with ds.Checkpointer(FaultyTier(inner, Fault("write", spoil=flip))) as ckpt:
        ckpt.save(state(1), step=1)  # the storage itself is bad, and says nothing
        target = {"a": np.zeros(50_000), "b": np.zeros(10, int), "step": 0}
        with pytest.raises(ds.CorruptError):
            ckpt.restore(target, step=1)
        assert target["step"] == 0


@pytest.mark.parametrize("method", ["entries", "open", "manifest", "read"])
def test_storage_errors_are_raised_and_never_read_as_empty(method: str) -> None:
    inner = memory()
    with ds.Checkpointer(inner) as ckpt:
        ckpt.save(state(1), step=1)
    tier = FaultyTier(inner, Fault(method, ds.StorageError("503 slow down"), again=True))
    with ds.Checkpointer(tier) as ckpt, pytest.raises(ds.StorageError, match="503"):
        ckpt.restore()


# Deadlines.


@pytest.mark.parametrize(
    ("method", "says"),
    [("entries", "listing"), ("open", "opening"), ("manifest", "opening"), ("read", "waiting for")],
)
@pytest.mark.parametrize("step", [None, 1])
def test_storage_that_never_answers_is_an_error_by_the_deadline(
    method: str, says: str, step: int | None
) -> None:
    """Case 71: and the error says what did not answer."""
    inner = memory()
    with ds.Checkpointer(inner) as ckpt:
        ckpt.save(state(1), step=1)
    tier = GatedTier(inner, method)
    with ds.Checkpointer(tier, read_timeout_s=0.1) as ckpt, tier:
        with pytest.raises(StorageTimeoutError, match=says):
            ckpt.restore(step=step)
        tier.gate.set()
        assert ckpt.restore(step=step)["step"] == 1


def test_verifying_has_the_same_deadline() -> None:
    inner = memory()
    with ds.Checkpointer(inner) as ckpt:
        ckpt.save(state(1), step=1)
    tier = GatedTier(inner, "read")
    with (
        ds.Checkpointer(tier, read_timeout_s=0.1) as ckpt,
        tier,
        pytest.raises(StorageTimeoutError, match="a#0"),
    ):
        ckpt.verify(1)


def test_after_a_deadline_no_further_read_begins_and_the_reader_stays_open(tmp_path: Path) -> None:
    """A late read must not write into memory that is used again, or into another file."""
    with ds.Checkpointer(tmp_path) as ckpt:
        ckpt.save([np.full(100_000, i) for i in range(40)], step=1)
    tier = GatedTier(ZarrTier(str(tmp_path)), "read")
    counting = CountingTier(tier)
    with ds.Checkpointer(counting, read_timeout_s=0.1) as ckpt, tier:
        target = [np.full(100_000, -1) for _ in range(40)]
        with pytest.raises(StorageTimeoutError):
            ckpt.restore(target)
        begun = counting.calls["read"]
        assert begun <= READERS
        before = {t for t in threading.enumerate() if t.name.startswith("datastates-read")}
        tier.gate.set()
        for thread in before:
            thread.join(30)
        assert counting.calls["read"] == begun
        late = [a for a in target if (a != -1).any()]
        assert len(late) == begun, "those that were out found the step still open"
        assert all((a == i).all() for i, a in enumerate(target) if (a != -1).any())


# A restore writes nothing.


def test_a_killed_restore_leaves_no_trace(start: Callable[..., Any], tmp_path: Path) -> None:
    """Case 69: ten times, at whatever moment it is."""
    with ds.Checkpointer(tmp_path) as ckpt:
        ckpt.save(state(1, 3_000_000), step=1)
    before = everything_below(tmp_path)
    for delay in range(10):
        script = start(RESTORE_AND_DIE, tmp_path, delay / 400)
        assert script.line() == "dying"
        script.process.wait(30)
        assert script.process.returncode == -9
        assert everything_below(tmp_path) == before
    with ds.Checkpointer(tmp_path) as ckpt:
        support.assert_same(ckpt.restore(), state(1, 3_000_000))


RESTORE_AND_DIE = """
import os, signal, sys, threading
import datastates as ds
ckpt = ds.Checkpointer(sys.argv[1])
ckpt.latest()
print("dying", flush=True)
threading.Timer(float(sys.argv[2]), os.kill, (os.getpid(), signal.SIGKILL)).start()
while True:
    ckpt.restore()
"""


def test_a_read_only_place_can_be_restored_from(tmp_path: Path) -> None:
    """Case 69."""
    with ds.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(state(1), step=1)
    run = tmp_path / "run"
    command = ["mount", "--bind", "-o", "ro", str(run), str(run)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount read-only here: {mounted.stderr.decode()}")
    try:
        with ds.Checkpointer(run, keep_last=1) as ckpt:
            assert ckpt.restore()["step"] == 1 and ckpt.verify().ok and ckpt.info().step == 1
            assert ckpt.prune() == []
            with pytest.raises(ds.SaveError, match="Read-only file system"):
                ckpt.save(state(2), step=2)
            with pytest.raises(ds.StorageError, match="Read-only file system"):
                ckpt.delete(1)
            assert ckpt.steps() == [1]
    finally:
        subprocess.run(["umount", str(run)], check=True)


# Arguments.


@pytest.mark.parametrize(
    ("location", "says"),
    [
        *((x, "non-empty path") for x in ("", "a\0b")),
        *((x, "a path, a string or a tier") for x in (None, 5, ["x"], b"bytes")),
        ("nosuch://x", "known: memory, zarr"),
        ("memory://", "names no place"),
        (sys.executable, "is no directory"),
    ],
)
def test_a_location_that_is_none_is_refused(location: Any, says: str) -> None:
    with pytest.raises(ds.UsageError, match=says):
        ds.Checkpointer(location)


def test_a_location_may_be_a_path_a_scheme_or_a_tier(tmp_path: Path) -> None:
    for location in (tmp_path, str(tmp_path), f"zarr://{tmp_path}", ZarrTier(str(tmp_path))):
        with ds.Checkpointer(location) as ckpt:
            step = ckpt.save({"a": 1}).step
    with ds.Checkpointer(tmp_path) as ckpt:
        assert ckpt.steps() == [0, 1, 2, 3] and step == 3


@pytest.mark.parametrize("name", ["stall_timeout_s", "read_timeout_s", "close_timeout_s"])
@pytest.mark.parametrize("value", [0, -1, True, "5", float("nan")])
def test_a_deadline_is_a_positive_number(name: str, value: Any) -> None:
    with pytest.raises(ds.UsageError, match=name):
        ds.Checkpointer("nowhere", **{name: value})


@pytest.mark.parametrize("step", [-1, 1.0, True, "5", 10**19, None.__class__])
def test_a_step_is_a_whole_number(step: Any) -> None:
    with ds.Checkpointer(memory()) as ckpt:
        for call in (ckpt.restore, ckpt.info, ckpt.verify):
            with pytest.raises(ds.UsageError, match="whole number"):
                call(step=step)
        with pytest.raises(ds.UsageError, match="whole number"):
            ckpt.save_async(1, step=step)
        with pytest.raises(ds.UsageError, match="whole number"):
            ckpt.delete(step)


def test_a_step_may_be_any_kind_of_integer() -> None:
    with ds.Checkpointer(memory()) as ckpt:
        assert ckpt.save(1, step=np.int32(7)).step == 7  # type: ignore[arg-type]
        assert ckpt.save(1, step=10**18).step == 10**18
        assert ckpt.steps() == [7, 10**18]


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        *(({"a": x}, "must be a number") for x in ("1", b"1", None, [1])),
        ({1: 2.0}, "must be a number"),
        ({"a": np.ones(2)}, "not one number"),
        ({"a": 10**400}, "not one number"),
    ],
)
def test_a_metric_is_one_number(metrics: Any, says: str) -> None:
    with ds.Checkpointer(memory()) as ckpt, pytest.raises(ds.UsageError, match=says):
        ckpt.save_async(1, metrics=metrics)


def test_a_metric_may_be_any_kind_of_number() -> None:
    import torch

    with ds.Checkpointer(memory()) as ckpt:
        ckpt.save(1, metrics={"a": np.float32(1.5), "b": torch.tensor(2.5), "c": True, "d": 3})
        assert ckpt.info().metrics == {"a": 1.5, "b": 2.5, "c": 1.0, "d": 3.0}


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"a": object()}, "plain JSON"),
        ({"a": float("nan")}, "plain JSON"),
        ({1: 2}, "string keys"),
        ({"a": "x" * (2 << 20)}, "over 1 MiB"),
        ({"a": functools.reduce(lambda inner, _: [inner], range(200), [])}, "deep"),
    ],
)
def test_metadata_is_small_and_plain(metadata: Any, says: str) -> None:
    with ds.Checkpointer(memory()) as ckpt, pytest.raises(ds.UsageError, match=says):
        ckpt.save_async(1, metadata=metadata)


@pytest.mark.parametrize("only", ["model", [], [5], [()], {"a"}])
def test_parts_are_a_list(only: Any) -> None:
    with ds.Checkpointer(memory()) as ckpt:
        ckpt.save({"model": 1})
        with pytest.raises(ds.UsageError, match="only"):
            ckpt.restore(only=only)


def test_progress_counts_to_the_end() -> None:
    seen: list[tuple[int, int]] = []
    with ds.Checkpointer(memory()) as ckpt:
        ckpt.save([np.ones(100_000) for _ in range(5)])
        ckpt.restore(progress=lambda n, total: seen.append((n, total)))
        ckpt.verify(progress=lambda n, total: seen.append((n, total)))
    assert sum(n for n, _ in seen) == 2 * 4_000_000
    assert {total for _, total in seen} == {4_000_000}


def test_a_part_may_be_a_text_or_keys() -> None:
    with ds.Checkpointer(memory()) as ckpt:
        ckpt.save({"a": {"b": [1, 2]}, "c": 3})
        assert ckpt.restore(only=["a/b"]) == ckpt.restore(only=[("a", "b")]) == {"a": {"b": [1, 2]}}


def test_a_progress_callback_that_fails_ends_the_restore() -> None:
    def fail(nbytes: int, total: int) -> None:
        raise RuntimeError("no bar today")

    with ds.Checkpointer(memory()) as ckpt:
        ckpt.save([np.ones(100_000) for _ in range(50)])
        with pytest.raises(ds.StorageError, match="no bar today"):
            ckpt.restore(progress=fail)


# Names of tiers and providers.


def test_a_plugin_that_cannot_be_imported_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "somebody-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody\nVersion: 1.0\n")
    points = "[datastates.tiers]\nbroken = no_such_module:Tier\n"
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ds.UsageError, match="'broken' cannot be imported: No module named"):
        ds.Checkpointer("broken://x")
    with pytest.raises(ds.UnknownNameError, match="known: broken, memory, zarr"):
        ds.Checkpointer("other://x")


def test_a_provider_that_is_not_installed_here_is_named() -> None:
    class Note(str):
        __slots__ = ()

    class Notes(ds.Provider):
        name = "example.notes"

        def claims(self, kind: type) -> bool:
            return kind is Note

        def split(self, value: Any, saver: ds.Saver) -> Any:
            return str(value)

        def join(self, data: Any, target: Any, loader: ds.Loader) -> Any:
            return lambda: Note(data)

    place = memory()
    with ds.Checkpointer(place, providers=[Notes()]) as ckpt:
        ckpt.save({"a": Note("x"), "b": 1})
        assert type(ckpt.restore()["a"]) is Note
    with ds.Checkpointer(place) as ckpt:
        with pytest.raises(ds.UnknownNameError, match=r"a: no provider called 'example.notes'"):
            ckpt.restore()
        assert ckpt.restore(only=["b"]) == {"b": 1}
