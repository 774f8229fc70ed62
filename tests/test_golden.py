"""Checkpoints of every format that was released are restored exactly."""

import shutil
from pathlib import Path

import golden_state
import pytest
import torch
import zarr
from support import assert_same

import datastates as ds

GOLDEN = sorted((Path(__file__).parent / "golden").glob("format-*"))
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")


@pytest.fixture(params=GOLDEN, ids=lambda path: path.name)
def golden(request):
    with ds.Checkpointer(request.param, arena_nbytes=8 << 20) as ckpt:
        yield ckpt


def expected():
    """What comes back of the state without a target."""
    state = golden_state.state()
    state["position"] = state["position"].state_dict()
    state["pickled"] = state["pickled"].value
    return state


def settled(state):
    """Generators as what they draw next."""
    state = dict(state)
    state["python rng"] = [state["python rng"].random() for _ in range(3)]
    state["numpy rng"] = [g.random() for g in (state["numpy rng"], *state["numpy rng"].spawn(2))]
    return state


def test_there_is_one_for_every_format():
    from datastates.manifest import FORMAT

    formats = [f"format-{n}" for n in range(1, FORMAT + 1)]
    names = {path.name for path in GOLDEN}
    assert names == {*formats, *(f"{name}-packed" for name in formats)}


def test_a_golden_checkpoint_is_restored_exactly(golden):
    """Case 19."""
    assert golden.steps() == [7]
    assert_same(settled(expected()), settled(golden.restore(trust=True)))


def test_a_golden_checkpoint_fills_a_target(golden):
    position = golden_state.Position()
    target = {"tensors": golden_state.state()["tensors"], "position": position}
    for tensor in target["tensors"].values():
        if tensor.layout is torch.strided and tensor.dtype is not torch.complex32:
            tensor.detach().zero_()
    golden.restore(into=target, only=["tensors", "position"])
    assert_same(golden_state.state()["tensors"], target["tensors"])
    assert position.index == 5
    assert position.seen.tolist() == [0, 1, 2, 3, 4]


def test_a_golden_checkpoint_is_whole(golden):
    assert golden.verify().ok
    info = golden.info()
    assert (info.metrics, info.metadata) == (golden_state.METRICS, golden_state.METADATA)
    group = zarr.open_group(f"datastates://{info.path}", mode="r")
    assert group.attrs["step"] == 7
    assert group["tensors/sharded"].shards is not None


def test_a_golden_checkpoint_is_read_without_being_touched(golden, tmp_path):
    """From a read-only copy, and with the same bytes after it."""
    copy = Path(shutil.copytree(golden.info().path, tmp_path / "step-0000000007"))
    before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    with ds.Checkpointer(tmp_path) as ckpt:
        assert_same(settled(expected()), settled(ckpt.restore(trust=True)))
    assert {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()} == before
    for path in [copy, *(p for p in copy.rglob("*") if p.is_dir())]:
        path.chmod(0o755)


def test_a_golden_checkpoint_is_small():
    for path in GOLDEN:
        files = [p for p in path.rglob("*") if p.is_file()]
        assert len(files) < 60
        assert sum(p.stat().st_size for p in files) < 300_000
