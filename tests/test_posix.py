"""Files and the system beneath: short transfers, refused direct I/O, full disks, order of syncs."""

import ctypes
import errno
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import support
import torch

import datastates as ds
from datastates.memory import allocate
from datastates.provider import Bytes
from datastates.tiers import posix
from datastates.tiers.posix import DIRECT_NBYTES, Files
from datastates.tiers.zarr import ZarrTier

MIB = 1 << 20
SIZES = (1, 4095, 4096, DIRECT_NBYTES - 1, DIRECT_NBYTES, DIRECT_NBYTES + 1, 3 * MIB + 5)
LIMITS: dict[str, Callable[[int], int]] = {
    "all": lambda n: n,
    "half": lambda n: max(1, n // 2),
    "a page": lambda n: min(n, 4096),
    "odd": lambda n: min(n, 100_001),
}
"""How many bytes of n one system call transfers."""
REFUSED = OSError(errno.EINVAL, "Invalid argument")


def pattern(nbytes: int) -> Bytes:
    """Return page-aligned random bytes, to the end of their last page."""
    data = allocate(-(-nbytes // 4096) * 4096)
    data[:] = np.random.default_rng(nbytes).integers(0, 256, len(data), np.uint8)
    return data


def is_direct(fd: int) -> bool:
    flags = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()[1].split()[1]
    return bool(int(flags, 8) & os.O_DIRECT)


@pytest.fixture
def limit_writes(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    real = os.pwrite

    def install(name: str) -> None:
        def pwrite(fd: int, data: Any, offset: int) -> int:
            return real(fd, memoryview(data)[: LIMITS[name](len(data))], offset)

        monkeypatch.setattr(os, "pwrite", pwrite)

    return install


@pytest.fixture
def limit_reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    real = os.preadv

    def install(name: str) -> None:
        def preadv(fd: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
            (buffer,) = buffers
            return real(fd, [memoryview(buffer)[: LIMITS[name](len(buffer))]], offset, flags)

        monkeypatch.setattr(os, "preadv", preadv)

    return install


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def path_of(fd: int) -> str:
    return str(Path(f"/proc/self/fd/{fd}").readlink())


def out_of_cache(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# Transfers.


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("limit", LIMITS)
def test_a_file_is_complete_however_little_each_write_takes(
    tmp_path: Path, limit_writes: Any, direct: bool, limit: str
) -> None:
    """Case 54, and one worse: pieces that end in the middle of a page."""
    limit_writes(limit)
    files = Files(direct=direct)
    for nbytes in SIZES:
        data, path = pattern(nbytes), tmp_path / str(nbytes)
        files.write(str(path), data, 0, nbytes, whole=True)
        assert path.read_bytes() == data[:nbytes].tobytes()


@pytest.mark.parametrize("limit", LIMITS)
def test_parts_of_a_file_do_not_touch_each_other(
    tmp_path: Path, limit_writes: Any, limit: str
) -> None:
    """Pieces of a shard, written by several threads: only the padding of their own page."""
    limit_writes(limit)
    files, path, stride = Files(), tmp_path / "shard", 1 * MIB
    pieces = [pattern(stride - 4096 + i) for i in (10, 20, 30, 40)]
    threads = [
        threading.Thread(
            target=files.write,
            args=(str(path), piece, i * stride, stride - 4096 + 10 * (i + 1)),
            kwargs={"whole": False},
        )
        for i, piece in enumerate(pieces)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    found = path.read_bytes()
    for i, piece in enumerate(pieces):
        nbytes = stride - 4096 + 10 * (i + 1)
        assert found[i * stride : i * stride + nbytes] == piece[:nbytes].tobytes()


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("limit", LIMITS)
def test_all_is_read_however_little_each_read_gives(
    tmp_path: Path,
    folder: int,
    limit_reads: Any,
    cached: bool,
    direct: bool,
    shift: int,
    limit: str,
) -> None:
    """Case 53: from the cache or past it, into aligned memory or not."""
    data = pattern(5 * MIB + 777)
    (tmp_path / "file").write_bytes(data.tobytes())
    limit_reads(limit)
    files = Files(direct=direct)
    for offset, nbytes in (
        (0, 1),
        (0, 5 * MIB),
        (4096, 2 * MIB + 13),
        (4097, 3 * MIB),
        (MIB, 70_000),
    ):
        if not cached:
            out_of_cache(tmp_path / "file")
        out = allocate(nbytes + 1)[shift : shift + nbytes]
        files.read(folder, ("file",), offset, out)
        assert out.tobytes() == data[offset : offset + nbytes].tobytes()


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("nbytes", SIZES[1:])
def test_a_file_that_ends_too_early_is_corrupt(
    tmp_path: Path, folder: int, cached: bool, direct: bool, nbytes: int
) -> None:
    """Case 56: cut at any place, it is a Python error; nothing is mapped."""
    for left in {0, 1, nbytes // 2, nbytes - 1}:
        (tmp_path / "file").write_bytes(bytes(left))
        if not cached:
            out_of_cache(tmp_path / "file")
        with pytest.raises(ds.CorruptError, match=f"file ends at {left}, {nbytes - left} short"):
            Files(direct=direct).read(folder, ("file",), 0, allocate(nbytes))


def test_what_is_no_regular_file_below_is_corrupt(tmp_path: Path, folder: int) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "up").symlink_to("..")
    os.mkfifo(tmp_path / "pipe")
    for parts in (("none",), ("folder",), ("link",), ("pipe",), ("up", "file"), ("file", "x")):
        with pytest.raises(ds.CorruptError, match=r"is missing|is no regular file"):
            posix.open_beneath(folder, parts)
    (tmp_path / "folder/inner").write_bytes(b"y")
    with open(posix.open_beneath(folder, ("folder", "inner")), "rb") as file:
        assert file.read() == b"y"


# File systems that refuse.


def test_where_direct_writes_are_refused_the_cache_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the opening by some, at the first write by others; it is asked once."""
    real_open, real_write = os.open, os.pwrite
    asked: list[str] = []

    def open_(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & os.O_DIRECT:
            asked.append("open")
            if "at open" in str(path):
                raise REFUSED
        return real_open(path, flags, *args, **options)

    def pwrite(fd: int, data: Any, offset: int) -> int:
        if is_direct(fd):
            asked.append("write")
            raise REFUSED
        return real_write(fd, data, offset)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "pwrite", pwrite)
    data = pattern(MIB)
    for name, expected in (("at open", ["open"]), ("at write", ["open", "write"])):
        files = Files()
        for i in range(3):
            path = tmp_path / f"{name}{i}"
            files.write(str(path), data, 0, MIB - 1, whole=True)
            assert path.read_bytes() == data[: MIB - 1].tobytes()
        assert asked == expected and not files.direct
        asked.clear()


def test_where_direct_reads_are_refused_the_cache_is_used(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open, real_read = os.open, os.preadv
    data = pattern(MIB)
    (tmp_path / "at open").write_bytes(data.tobytes())
    (tmp_path / "at read").write_bytes(data.tobytes())

    def open_(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & os.O_DIRECT and path == "at open":
            raise REFUSED
        return real_open(path, flags, *args, **options)

    def preadv(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT or is_direct(fd):
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return real_read(fd, buffers, offset)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "preadv", preadv)
    for name in ("at open", "at read"):
        for shift in (0, 1):
            files = Files()
            out_of_cache(tmp_path / name)
            out = allocate(MIB + 1)[shift : shift + MIB]
            files.read(folder, (name,), 0, out)
            assert out.tobytes() == data.tobytes()
            assert not files.direct


def test_what_the_cache_holds_is_taken_and_the_rest_read(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache gives half of it, and would have to wait for the other half."""
    real = os.preadv
    data = pattern(2 * MIB)
    (tmp_path / "file").write_bytes(data.tobytes())
    asked: list[str] = []

    def preadv(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        asked.append("cache" if flags & os.RWF_NOWAIT else "disk")
        if flags & os.RWF_NOWAIT and offset:
            raise BlockingIOError
        if flags & os.RWF_NOWAIT:
            buffers = [memoryview(buffers[0])[: MIB + 100]]
        return real(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", preadv)
    out = allocate(2 * MIB)
    Files().read(folder, ("file",), 0, out)
    assert out.tobytes() == data.tobytes()
    assert asked[:2] == ["cache", "cache"] and "disk" in asked


@pytest.mark.parametrize("where", ["open", "pwrite", "preadv", "direct preadv", "direct open"])
def test_other_errors_name_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """They are not taken for a refusal, and not swallowed."""
    real_open, real_read = os.open, os.preadv
    root = tmp_path / "run"
    tier = ZarrTier(str(root))
    if where.endswith(("preadv", "direct open")):
        with ds.Checkpointer(tier) as ckpt:
            ckpt.save({"a": np.ones(MIB)}, step=1)
    broken = OSError(errno.EIO, "Input/output error")

    def open_(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if (where == "open" and flags & os.O_CREAT and "/a/" in str(path)) or (
            where == "direct open" and flags & os.O_DIRECT
        ):
            raise broken
        return real_open(path, flags, *args, **options)

    def preadv(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if where == "preadv" or is_direct(fd):
            raise broken
        return real_read(fd, buffers, offset, flags)

    def pwrite(fd: int, data: Any, offset: int) -> int:
        raise broken

    monkeypatch.setattr(os, "open", open_)
    if where.endswith("preadv"):
        monkeypatch.setattr(os, "preadv", preadv)
    if where == "pwrite":
        monkeypatch.setattr(os, "pwrite", pwrite)
    ckpt = ds.Checkpointer(tier)
    if where in ("open", "pwrite"):
        with pytest.raises(ds.SaveError, match=r"run.*: Input/output error"):
            ckpt.save({"a": np.ones(MIB)}, step=1)
    else:
        with pytest.raises(ds.StorageError, match=r"cannot read a/c.0: Input/output error"):
            ckpt.restore()
    ckpt.close()


def test_a_file_that_takes_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: 0)
    with pytest.raises(OSError, match="takes no more bytes"):
        Files().write(str(tmp_path / "x"), pattern(MIB), 0, MIB, whole=True)


def test_an_old_kernel_that_cannot_tell_what_is_cached_is_read_right(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posix, "_CACHESTAT", 100_000)
    data = pattern(MIB)
    (tmp_path / "file").write_bytes(data.tobytes())
    for cold in (False, True):
        if cold:
            out_of_cache(tmp_path / "file")
        out = allocate(MIB)
        Files().read(folder, ("file",), 0, out)
        assert out.tobytes() == data.tobytes()


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSPC, errno.EINTR])
def test_room_is_taken_in_advance_where_the_system_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Only the size where it cannot; again after a signal; an error where there is no room."""
    calls: list[int] = []

    class Library:
        @staticmethod
        def fallocate(*args: Any) -> int:
            calls.append(1)
            if len(calls) > 1:
                return 0
            ctypes.set_errno(code)
            return -1

    monkeypatch.setattr(posix, "_libc", Library)
    with (tmp_path / "file").open("wb") as file:
        if code == errno.ENOSPC:
            with pytest.raises(OSError, match="No space left"):
                posix.preallocate(file.fileno(), 12345)
            return
        posix.preallocate(file.fileno(), 12345)
        assert len(calls) == (2 if code == errno.EINTR else 1)
        assert os.fstat(file.fileno()).st_size == (12345 if code == errno.EOPNOTSUPP else 0)


def test_room_is_really_taken(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        posix.preallocate(file.fileno(), 5 * MIB)
        found = os.fstat(file.fileno())
        assert found.st_size == 5 * MIB and found.st_blocks * 512 >= 5 * MIB


def test_signals_do_not_disturb_a_save(tmp_path: Path) -> None:
    """A profiler's timer, for instance: system calls are interrupted all the time."""
    heard: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: heard.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        with ds.Checkpointer(tmp_path, arena_nbytes=8 * MIB) as ckpt:
            state = {"a": np.arange(2_000_000), "b": [np.arange(i) for i in range(50)]}
            ckpt.save(state)
            support.assert_same(ckpt.restore(), state)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert heard


# Whole checkpoints on a bad system.

STATE = {
    "big": torch.arange(1_500_000),
    "small": [torch.arange(i) for i in range(40)],
    "text": "x" * 200_000,
}


@pytest.mark.parametrize("limit", ["half", "odd"])
def test_a_checkpoint_is_whole_on_a_system_of_short_transfers(
    tmp_path: Path, limit_writes: Any, limit_reads: Any, limit: str
) -> None:
    """Cases 53 and 54: shards, indexes, leases, documents and manifest, too."""
    limit_writes(limit)
    limit_reads(limit)
    with ds.Checkpointer(tmp_path, arena_nbytes=8 * MIB) as ckpt:
        ckpt.save(STATE)
        support.assert_same(ckpt.restore(), STATE)
        assert ckpt.verify().ok


@pytest.mark.parametrize("place", ["tmp_path", "/dev/shm"])
def test_checkpoints_lie_on_any_local_file_system(tmp_path: Path, place: str) -> None:
    root = tmp_path if place == "tmp_path" else Path(place) / f"datastates-test-{os.getpid()}"
    try:
        with ds.Checkpointer(root, arena_nbytes=8 * MIB) as ckpt:
            ckpt.save(STATE)
            support.assert_same(ckpt.restore(), STATE)
    finally:
        subprocess.run(["rm", "-rf", str(root)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    root = tmp_path / "disk"
    root.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(root)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.decode()}")
    yield root
    subprocess.run(["umount", str(root)], check=True)


@pytest.mark.parametrize("parts", [1, 40], ids=["one tensor", "many tensors"])
def test_a_full_disk_costs_the_checkpoint_and_says_what_is_missing(
    small_disk: Path, parts: int
) -> None:
    """Case 57: path, needed and free bytes; what was written of it goes, so the next one fits."""
    run = small_disk / "run"
    small = {"a": np.ones(500_000)}
    big = {"part": [np.ones(24 * MIB // 8 // parts) for _ in range(parts)]}
    ckpt = ds.Checkpointer(run, arena_nbytes=8 * MIB)
    ckpt.save(small, step=1)
    with pytest.raises(
        ds.SaveError, match=rf"no space to \w+ {run}/.*: \d+ bytes needed, \d+ free"
    ) as e:
        ckpt.save(big, step=2)
    assert isinstance(e.value.__cause__, ds.NoSpaceError)
    assert ckpt.save(small, step=3).step == 3
    assert ckpt.steps() == [1, 3]
    support.assert_same(ckpt.restore(), small)
    ckpt.close()
    assert sorted(path.name for path in run.iterdir()) == ["step-0000000001", "step-0000000003"]


def test_a_disk_filled_by_dead_savers_has_room_again(small_disk: Path) -> None:
    """They are swept before the first save, not only after one that succeeded."""
    half = small_disk / "step-0000000001/a"
    half.mkdir(parents=True)
    (half / "c.0").write_bytes(bytes(13 * MIB))
    with ds.Checkpointer(small_disk, arena_nbytes=8 * MIB) as ckpt:
        with pytest.warns(RuntimeWarning, match="free"):
            ckpt.save({"a": np.ones(8 * MIB, np.uint8)}, step=2)
        assert ckpt.steps() == [2]


def test_the_first_save_warns_where_there_is_no_room_for_what_shall_be_kept(
    small_disk: Path,
) -> None:
    """Case 57: and only the first."""
    state = {"a": np.ones(3 * MIB, np.uint8)}
    with ds.Checkpointer(small_disk, keep_last=1, arena_nbytes=8 * MIB) as ckpt:
        ckpt.save(state)
    with ds.Checkpointer(small_disk, keep_last=9, arena_nbytes=8 * MIB) as ckpt:
        with pytest.warns(RuntimeWarning, match=r"0\.0 GB free; keeping 9 steps and writing one"):
            ckpt.save(state)
        ckpt.save(state)


def test_a_place_that_cannot_be_made_is_an_error_of_the_save(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    ckpt = ds.Checkpointer(tmp_path / "file/run")
    with pytest.raises(ds.SaveError, match="Not a directory"):
        ckpt.save(1, step=1)
    ckpt.close()


# Durability.


class Record:
    """What a save asks of the file system, in order, with paths relative to the run's parent."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base, self.events = base, []
        for name in ("open", "mkdir", "rename", "fsync", "pwrite", "unlink", "rmdir"):
            monkeypatch.setattr(os, name, self._hook(name, getattr(os, name)))
        self.events: list[tuple[str, str]]

    def _hook(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def hook(first: Any, *args: Any, **options: Any) -> Any:
            path = path_of(first) if type(first) is int else str(first)
            result = real(first, *args, **options)
            kind = name
            if name == "open" and args[0] & os.O_CREAT:
                kind = "create"
            if name == "rename":
                path = str(args[0])
            if kind != "open" and path.startswith(str(self.base)):
                self.events.append((kind, path.removeprefix(f"{self.base}/")))
            return result

        return hook

    def last(self, kind: str, path: str) -> int:
        return max((i for i, e in enumerate(self.events) if e == (kind, path)), default=-1)


def test_all_is_durable_before_the_commit_and_the_commit_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 41: each file synced after its last write, each directory after its last entry."""
    record = Record(tmp_path, monkeypatch)
    with ds.Checkpointer(tmp_path / "runs/gpt", arena_nbytes=8 * MIB) as ckpt:
        ckpt.save(STATE, step=1)
    step = "runs/gpt/step-0000000001"
    (commit,) = (i for i, e in enumerate(record.events) if e == ("rename", f"{step}/zarr.json"))
    before = record.events[:commit]
    written = {path for kind, path in before if kind == "pwrite" and "lease" not in path}
    assert len(written) > 80
    for path in written:
        assert record.last("pwrite", path) < record.last("fsync", path) < commit, path
    made = [e for e in before if e[0] in ("create", "mkdir") and "lease" not in e[1]]
    assert len({path for kind, path in made if kind == "mkdir"}) > 40
    for kind, path in made:
        parent = os.path.dirname(path)  # noqa: PTH120 - a text, no path of a file
        if parent and path != f"{step}/zarr.json.new":
            assert record.last(kind, path) < record.last("fsync", parent), path
    for parent in ("runs", "runs/gpt"):
        assert -1 < record.last("fsync", parent) < commit
    assert record.last("fsync", step) > commit
    assert record.last("fsync", f"{step}/zarr.json.new") < commit


def test_a_step_is_gone_for_good_before_its_bytes_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletion: the record goes first, durably, so no crash leaves a step without its files."""
    with ds.Checkpointer(tmp_path) as ckpt:
        ckpt.save(STATE, step=1)
        ckpt.wait()
        record = Record(tmp_path, monkeypatch)
        ckpt.delete(1)
    assert record.events[:2] == [
        ("unlink", "step-0000000001/zarr.json"),
        ("fsync", "step-0000000001"),
    ]


def test_syncing_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 41: for a scratch disk, where only the process may die."""
    record = Record(tmp_path, monkeypatch)
    with ds.Checkpointer(ZarrTier(str(tmp_path / "run"), fsync=False)) as ckpt:
        ckpt.save(STATE, step=1)
        ckpt.delete(1)
    kinds = {kind for kind, _ in record.events}
    assert "rename" in kinds and "fsync" not in kinds


@pytest.mark.parametrize("which", ["data", "directory after the commit"])
def test_what_could_not_be_synced_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """The disk reports a lost write only there: then the step must not be seen."""
    real = os.fsync
    root = tmp_path / "run"

    def fsync(fd: int) -> None:
        path = path_of(fd)
        committed = (root / "step-0000000002/zarr.json").exists()
        if path.endswith("/big/c.0") if which == "data" else committed:
            raise OSError(errno.EIO, "lost write")
        real(fd)

    ckpt = ds.Checkpointer(root, arena_nbytes=64 * MIB)
    ckpt.save(STATE, step=1)
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(ds.SaveError, match="lost write"):
        ckpt.save(STATE, step=2)
    monkeypatch.setattr(os, "fsync", real)
    assert ckpt.steps() == [1]
    assert [path.name for path in root.iterdir()] == ["step-0000000001"]
    ckpt.close()


def test_what_cannot_be_removed_now_is_swept_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed save on a failing disk: nothing of it counts, and nobody trips over it."""
    real = os.rmdir

    def rmdir(*args: Any, **options: Any) -> None:
        raise OSError(errno.EBUSY, "busy")

    ckpt = ds.Checkpointer(tmp_path)
    with monkeypatch.context() as patched, pytest.raises(ds.SaveError, match="busy"):
        patched.setattr(os, "rmdir", rmdir)
        patched.setattr(os, "rename", rmdir)
        ckpt.save(STATE, step=1)
    ckpt.close()
    assert "cannot remove the half-written" in caplog.text
    assert ZarrTier(str(tmp_path)).entries() == []
    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", rmdir)
        assert ZarrTier(str(tmp_path)).sweep() == []
    assert os.rmdir is real
    assert ZarrTier(str(tmp_path)).sweep() == ["step-0000000001"]
    assert list(tmp_path.iterdir()) == []


# How many files.


def test_a_tensor_is_two_files_whatever_its_size(tmp_path: Path) -> None:
    """Case 58: one with the data, however many chunks, and one that describes it."""
    state = {
        "model": {f"w{i}": torch.ones(1000) for i in range(50)},
        "big": torch.ones(10 * MIB, dtype=torch.uint8),
        "scalars": {f"s{i}": torch.tensor(float(i)) for i in range(50)},
        "tied": torch.ones(1000),
    }
    state["again"] = state["tied"]
    with ds.Checkpointer(tmp_path, arena_nbytes=8 * MIB) as ckpt:
        ckpt.save(state, step=1)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    arrays, scalars, groups = 52, 50, 4  # groups: the root, model, scalars, and ours
    assert len(files) == 2 * arrays + scalars + groups + 2, "and the manifest, an array itself"
