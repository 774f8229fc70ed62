"""Layout `packed`: one file for all arrays; and how Zarr opens it, with our package and without."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
import zarr
from cli_support import Cli
from support import assert_same

import datastates as ds
from datastates.tiers import layout
from datastates.tiers.zarr import ZarrTier

MIB = 1 << 20
STEP = "step-0000000001"
IMAGE = ".datastates/image.0"
LAYOUTS = ("tree", "packed")


def state(seed: int = 0) -> dict[str, Any]:
    """Return a state with a shard of several chunks, single chunks, small ones and a scalar."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "model": {
            "big": torch.rand(3000, 1000, generator=generator),
            "w": torch.rand(300, 100, generator=generator),
            "b": torch.rand(7, generator=generator),
            "one": torch.tensor(2.5),
        },
        "epoch": 3,
    }


def save(root: Path, form: str, content: object) -> Path:
    with ds.Checkpointer(root, arena_nbytes=8 * MIB, layout=form) as ckpt:
        ckpt.save(content, step=1)
    return root / STEP


@pytest.fixture(params=LAYOUTS)
def step(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return save(tmp_path / "run", request.param, state())


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return save(tmp_path / "run", "packed", state())


def files(step: Path) -> list[str]:
    return sorted(str(path.relative_to(step)) for path in step.rglob("*") if path.is_file())


def run(code: str, *arguments: object) -> None:
    """Run Python code elsewhere, in a process of its own."""
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=60)
    assert done.returncode == 0, done.stderr


# What lies there.


def test_a_packed_step_is_a_handful_of_files_however_many_tensors(tmp_path: Path) -> None:
    """Case 58."""
    tensors = {f"t{i}": torch.full((100,), float(i)) for i in range(3000)}
    step = save(tmp_path, "packed", tensors)
    ours = ("image.0", "manifest.0/c.0", "manifest.0/zarr.json", "zarr.json")
    assert files(step) == [*(f".datastates/{name}" for name in ours), "zarr.json"]
    with ds.Checkpointer(tmp_path) as ckpt:
        assert_same(tensors, ckpt.restore())


def test_the_data_of_each_array_are_one_range_and_the_bytes_of_its_file(tmp_path: Path) -> None:
    tree, packed = (save(tmp_path / form, form, state()) for form in LAYOUTS)
    with ZarrTier(str(tmp_path / "packed")).open(ds.Entry(1)) as reader:
        keys = reader.as_zarr()
    assert keys is not None
    image = (packed / IMAGE).read_bytes()
    spans = {key: span for key, span in keys.items() if not isinstance(span, bytes)}
    assert set(spans) == {"model/big/c.0.0", "model/w/c.0.0", "model/b/c.0"}
    for key, span in spans.items():
        assert span.file == IMAGE
        assert image[span.offset : span.offset + span.nbytes] == (tree / key).read_bytes()


def test_between_the_arrays_is_nothing_of_an_earlier_save(tmp_path: Path) -> None:
    with ds.Checkpointer(tmp_path, arena_nbytes=8 * MIB, layout="packed") as ckpt:
        ckpt.save({"x": torch.full((8 * MIB,), 0xAB, dtype=torch.uint8)}, step=0)
        ckpt.save({f"t{i}": torch.zeros(1000 + i) for i in range(200)}, step=1)
    assert b"\xab\xab\xab\xab" not in (tmp_path / STEP / IMAGE).read_bytes()


def test_a_packed_step_opened_as_plain_files_has_no_arrays(packed: Path) -> None:
    """Nothing, rather than arrays that read as zeros."""
    group = zarr.open_group(packed, mode="r")
    assert group.attrs["datastates"]["layout"] == "packed"  # type: ignore[index,call-overload]
    assert [name for name, _ in group.members() if name != ".datastates"] == []


def test_steps_of_both_layouts_lie_side_by_side(tmp_path: Path) -> None:
    for number, form in enumerate(("tree", "packed", "auto")):
        with ds.Checkpointer(tmp_path, layout=form, arena_nbytes=8 * MIB) as ckpt:
            ckpt.save(state(number), step=number)
    with ds.Checkpointer(tmp_path) as ckpt:
        for number in range(3):
            assert_same(state(number), ckpt.restore(step=number))
            assert ckpt.verify(number).ok


@pytest.mark.parametrize("command", ["list", "show", "verify", "prune --keep-last 1"])
def test_commands_work_on_a_packed_step(packed: Path, cli: Cli, command: str) -> None:
    first, *rest = command.split()
    assert cli(first, packed.parent, *rest).exit_code == 0


# Which layout.


@pytest.mark.parametrize(("count", "form"), [(400, "tree"), (600, "packed")])
def test_many_files_are_packed(tmp_path: Path, count: int, form: str) -> None:
    step = save(tmp_path, "auto", {f"t{i}": torch.ones(3) for i in range(count)})
    assert (step / IMAGE).exists() == (form == "packed")
    assert len(files(step)) < layout.MAX_FILES


@pytest.mark.parametrize(
    ("kind", "form"),
    [("ext4", "tree"), ("overlay", "tree"), ("fuseblk", "tree"), ("nfs4", "packed")]
    + [(kind, "packed") for kind in ("lustre", "ceph", "fuse.glusterfs", "fuse", "beegfs")],
)
def test_network_file_systems_are_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, form: str
) -> None:
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 0:9999 / /proc rw shared:1 - proc proc rw\n"
        f"2 1 {number} / /data/a\\040b rw,relatime shared:2 master:1 - {kind} server:/x rw\n"
    )
    monkeypatch.setattr(layout, "_MOUNTS", str(mounts))
    step = save(tmp_path / "run", "auto", state())
    assert (step / IMAGE).exists() == (form == "packed")


def test_a_system_that_does_not_tell_its_mounts_counts_as_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "_MOUNTS", str(tmp_path / "none"))
    assert not layout.is_network(tmp_path)


def test_a_layout_that_a_tier_has_not_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ds.UsageError, match="zarr has no layout 'flat'; it has: auto, tree, pack"):
        ds.Checkpointer(tmp_path, layout="flat")
    with pytest.raises(ds.UsageError, match="memory has no layout 'packed'; it has: auto"):
        ds.Checkpointer("memory://x", layout="packed")
    with pytest.raises(ds.UsageError, match="to the tier itself"):
        ds.Checkpointer(ZarrTier(str(tmp_path)), layout="packed")
    with pytest.raises(ds.UsageError, match="'flat' is no layout"):
        ZarrTier(str(tmp_path), layout="flat")


# Damage.


def spoil_index(image: Path) -> None:
    content = bytearray(image.read_bytes())
    with ZarrTier(str(image.parents[2])).open(ds.Entry(1)) as reader:
        keys = reader.as_zarr()
    assert keys is not None
    span = keys["model/big/c.0.0"]
    assert not isinstance(span, bytes)
    content[span.offset + span.nbytes - 5] ^= 1
    image.write_bytes(content)


def cut_in_half(image: Path) -> None:
    os.truncate(image, image.stat().st_size // 2)


@pytest.mark.parametrize("damage", [spoil_index, cut_in_half, Path.unlink])
def test_verify_finds_a_damaged_image(packed: Path, damage: Any) -> None:
    """An index, too, which only Zarr readers use."""
    damage(packed / IMAGE)
    with ds.Checkpointer(packed.parent) as ckpt:
        report = ckpt.verify(1)
    assert {str(d).split("/c.")[0].split(":")[0] for d in report.damaged} >= {"model/big"}


@pytest.mark.parametrize(
    ("form", "call", "name"),
    [
        ("packed", "fsync", "/image.0"),
        ("packed", "pwrite", "/image.0"),
        ("tree", "pwrite", "/model/w/zarr.json"),
        ("tree", "pwrite", "/model/one/zarr.json"),
        ("tree", "fsync", "/model/w"),
    ],
)
def test_what_fails_beside_the_chunks_fails_the_save_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, call: str, name: str
) -> None:
    real = getattr(os, call)

    def fail(fd: int, *args: Any) -> Any:
        if str(Path(f"/proc/self/fd/{fd}").readlink()).endswith(name):
            raise OSError(errno.EIO, "lost")
        return real(fd, *args)

    with ds.Checkpointer(tmp_path, arena_nbytes=8 * MIB, layout=form) as ckpt:
        with monkeypatch.context() as patched, pytest.raises(ds.SaveError, match="lost"):
            patched.setattr(os, call, fail)
            ckpt.save(state(), step=1)
        assert list(tmp_path.iterdir()) == []
        ckpt.save(state(), step=1)
        assert_same(state(), ckpt.restore())


# Open to Zarr.

READ = """
import sys, numpy as np, zarr
location, expected, options, banned = sys.argv[1], sys.argv[2], *map(eval, sys.argv[3:])
group = zarr.open(location, mode="r", storage_options=options)
for name, value in np.load(expected).items():
    found = group["model/" + name]
    assert found.shape == value.shape and np.array_equal(found[...], value), name
assert np.array_equal(group["model/big"][2990:, 7], np.load(expected)["big"][2990:, 7])
assert sorted(group["model"].array_keys()) == sorted(np.load(expected))
assert not [m for m in sys.modules if m.split(".")[0] in banned], "imported"
"""


@pytest.fixture
def expected(tmp_path: Path) -> Path:
    values = {name: tensor.numpy() for name, tensor in state()["model"].items()}
    np.savez(tmp_path / "expected.npz", **values)
    return tmp_path / "expected.npz"


def test_zarr_opens_a_step_by_its_address_and_no_import(step: Path, expected: Path) -> None:
    run(READ, f"datastates://{step}", expected, None, ["torch"])


def test_zarr_opens_a_step_by_a_reference_file_without_our_package(
    step: Path, expected: Path, cli: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "reference.json"
    assert cli("export", step, "--reference", file).exit_code == 0
    options = {"fo": str(file), "remote_protocol": "file", "asynchronous": True}
    run(READ, "reference://", expected, options, ["datastates", "torch"])
    moved = shutil.move(step, tmp_path / "moved")
    options["template_overrides"] = {"step": str(moved)}
    run(READ, "reference://", expected, options, ["datastates", "torch"])


def test_there_is_no_reference_to_memory(cli: Cli) -> None:
    with ds.Checkpointer("memory://unreferred") as ckpt:
        ckpt.save(state(), step=1)
    answer = cli("export", "memory://unreferred", "--reference", "x.json")
    assert answer.exit_code == 2 and "no files" in answer.stderr and not Path("x.json").exists()


def test_a_step_is_a_tree_of_files_to_fsspec(step: Path) -> None:
    fs = fsspec.filesystem("datastates")
    assert fs.isdir(step) and fs.isdir(f"{step}/model") and not fs.exists(f"{step}/nothing")
    assert sorted(fs.ls(step, detail=False)) == [f"{step}/model", f"{step}/zarr.json"]
    found = {path.removeprefix(f"{step}/model/") for path in fs.find(f"{step}/model")}
    arrays = {f"{name}/zarr.json" for name in state()["model"]}
    assert found == {"zarr.json", "big/c.0.0", "w/c.0.0", "b/c.0", *arrays}
    for path in fs.find(step):
        content = fs.cat_file(path)
        assert fs.size(path) == len(content)
        assert fs.cat_file(path, start=-20) == content[-20:]
        assert fs.cat_file(path, start=3, end=9) == content[3:9]
    assert json.loads(fs.open(f"{step}/model/zarr.json").read())["node_type"] == "group"


def test_a_step_of_any_name_is_found(step: Path, tmp_path: Path) -> None:
    shutil.copytree(step, tmp_path / "best" / "of all")
    group = zarr.open_group(f"datastates://{tmp_path}/best/of all", mode="r")
    assert np.array_equal(group["model/w"][...], state()["model"]["w"])  # type: ignore[index]


def test_nothing_is_written_through_the_address(step: Path) -> None:
    before = files(step)
    group = zarr.open_group(f"datastates://{step}")
    with pytest.raises(OSError, match="Read-only"):
        group["model/w"][0, 0] = 1.0  # type: ignore[index]
    with pytest.raises(OSError, match="Read-only"):
        group.create_array("more", shape=(3,), dtype="f4")
    with pytest.raises(OSError, match="Read-only"):
        zarr.open_group(f"datastates://{step}", mode="w")
    assert files(step) == before


def test_what_is_missing_is_an_error_and_never_zeros(step: Path) -> None:
    group = zarr.open_group(f"datastates://{step}", mode="r")
    for path in step.rglob("*"):
        if path.match("model/w/c.*") or path.name == "image.0":
            path.unlink()
    with pytest.raises(ds.CorruptError, match="missing"):
        group["model/w"][...]  # type: ignore[index]


def test_a_place_without_a_committed_step_is_not_found(step: Path, tmp_path: Path) -> None:
    (step / "zarr.json").unlink()
    for path in (step, tmp_path, tmp_path / "none"):
        with pytest.raises(FileNotFoundError):
            zarr.open_group(f"datastates://{path}", mode="r")


def test_no_link_is_followed_out_of_a_step(packed: Path, tmp_path: Path) -> None:
    (packed / IMAGE).rename(tmp_path / "outside")
    (packed / IMAGE).symlink_to(tmp_path / "outside")
    group = zarr.open_group(f"datastates://{packed}", mode="r")
    with pytest.raises(ds.CorruptError, match="no regular file"):
        group["model/w"][...]  # type: ignore[index]
