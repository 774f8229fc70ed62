"""Other processes, and the end of this one: what forks or ends beside a save harms nothing."""

import signal
from pathlib import Path
from typing import Any

import torch

import datastates as ds
from datastates.tiers.zarr import ZarrTier

HELD = """
import math, multiprocessing, os, pickle, signal, sys, threading, warnings
import torch
import torch.utils.data as data
import datastates as ds
from datastates.testing import GatedTier
from datastates.tiers.zarr import ZarrTier

warnings.filterwarnings("ignore", message=".*multi-threaded.*fork")
net = torch.nn.Linear(1024, 3072)  # more than the arena takes
torch.nn.init.ones_(net.weight)
optimizer = torch.optim.SGD(net.parameters(), lr=1.0)

def make(name, method="write"):
    tier = GatedTier(ZarrTier(os.path.join(sys.argv[1], name)), method)
    ckpt = ds.Checkpointer(tier, arena_nbytes=8 << 20, stall_timeout_s=100)
    ckpt.guard(optimizer)
    return tier, ckpt

def step():
    optimizer.zero_grad()
    net.weight.sum().backward()
    optimizer.step()

def fork(do, *arguments):
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    signal.alarm(40)  # a child that hangs ends by a signal
    do(*arguments)
    sys.stdout.flush()
    os._exit(0)
"""


def weights(path: Path) -> dict[int, float]:
    """Return what lies there: the one value of the weights of each step, every byte verified."""
    found = {}
    with ds.Checkpointer(path) as ckpt:
        for step in ckpt.steps():
            assert ckpt.verify(step).ok
            weight = ckpt.restore(step=step)["net"]["weight"]
            found[step] = weight[0, 0].item()
            assert (weight == found[step]).all()
    return found


# Forks.


def test_a_child_forked_during_a_save_takes_no_part_in_it(start: Any, tmp_path: Path) -> None:
    """However it ends, neither hangs, and the save is the parent's, with the parent's values."""
    code = """
def train_on():
    step()
    step()

def close():
    ckpt.fence()
    ckpt.close()
    sys.exit(0)

for name, end in {"exit": sys.exit, "at once": int, "train": train_on, "close": close}.items():
    tier, ckpt = make(name)
    with ckpt, tier:
        save = ckpt.save_async({"net": net}, step=1)
        assert tier.reached.wait(30)
        print(name, fork(end), ckpt.steps(), save.done(), flush=True)
        tier.gate.set()
        save.result(30)
"""
    script = start(HELD + code, tmp_path)
    names = ["exit", "at once", "train", "close"]
    assert [script.line() for _ in names] == [f"{name} 0 [] False" for name in names]
    script.end()
    assert [weights(tmp_path / name) for name in names] == [{1: 1.0}] * 4


def test_what_a_forked_child_may_not_do_is_said(start: Any, tmp_path: Path) -> None:
    """A save, or waiting for one, would hang there for ever; reading is nobody's."""
    code = """
def child():
    for call in (
        lambda: ckpt.save_async({}), lambda: ckpt.save({}), ckpt.wait, ckpt.statistics,
        lambda: ckpt.guard(optimizer),
    ):
        try:
            call()
        except ds.UsageError as error:
            assert "forked" in str(error), error
        else:
            os._exit(1)
    assert "of another process" in repr(ckpt)
    assert ckpt.latest() == 1 and bool((ckpt.restore()["net"]["weight"] == 1).all())

tier, ckpt = make("run")
tier.gate.set()
with ckpt, tier:
    ckpt.save({"net": net}, step=1)
    tier.gate.clear()
    tier.reached.clear()
    ckpt.save_async({"net": net}, step=2)
    assert tier.reached.wait(30)
    print(fork(child), flush=True)
"""
    script = start(HELD + code, tmp_path)
    assert script.line() == "0"
    script.end()
    assert weights(tmp_path / "run") == {1: 1.0, 2: 1.0}


def test_children_forked_at_any_moment_end(start: Any, tmp_path: Path) -> None:
    """A lock of ours may be held at that moment; in the child, it is so for ever."""
    code = """
tier, ckpt = make("run")
tier.gate.set()
with ckpt:
    for n in range(25):
        ckpt.save_async({"net": net}, step=n)
        ends = fork(ckpt.close), fork(lambda: repr(ckpt) and step())
        assert ends == (0, 0), ends
        step()
    ckpt.wait(30)
"""
    start(HELD + code, tmp_path).end()
    assert weights(tmp_path / "run") == {n: 1.0 - n for n in range(25)}


def test_a_signal_to_a_forked_child_is_the_childs(start: Any, tmp_path: Path) -> None:
    """Case 35: a worker that is told to end must not wait for saves that it does not have."""
    code = """
tier, ckpt = make("run")
with ckpt, tier:
    for take_last in (False, True):
        ckpt.on_signal(signal.SIGTERM, grace_s=100, take_last=take_last)
        ckpt.save_async({"net": net}, step=1)
        print(fork(os.kill, 0, 0), flush=True)
        end = fork(lambda: (os.kill(os.getpid(), signal.SIGTERM), signal.pause()))
        print(end, ckpt.preempted, flush=True)
        tier.gate.set()
"""
    script = start(HELD + code, tmp_path)
    for _ in range(2):
        assert script.line() == "0"
        assert script.line() == f"{-signal.SIGTERM} False"
    script.end()
    assert weights(tmp_path / "run") == {1: 1.0}


def test_data_loaders_work_beside_saves(start: Any, tmp_path: Path) -> None:
    """Workers are forked in the middle of a save; batches come in shared memory, and are saved."""
    code = """
tier, ckpt = make("run")
tier.gate.set()
rows = torch.arange(12.0).repeat_interleave(20_000).view(12, 20_000)
with ckpt:
    n = 0
    for epoch in range(2):
        ckpt.save_async({"net": net, "batch": None}, step=n)
        for (batch,) in data.DataLoader(data.TensorDataset(rows), batch_size=2, num_workers=2):
            step()
            n += 1
            ckpt.save_async({"net": net, "batch": batch}, step=n)
    ckpt.wait(60)
"""
    start(HELD + code, tmp_path).end()
    assert weights(tmp_path / "run") == {n: 1.0 - n for n in range(13)}
    with ds.Checkpointer(tmp_path / "run") as ckpt:
        for step in range(7, 13):
            first = 2.0 * (step - 7)
            expected = torch.tensor([[first], [first + 1]]).expand(2, 20_000)
            assert torch.equal(ckpt.restore(step=step, only=["batch"])["batch"], expected)


def test_spawned_children_work_beside_a_save(start: Any, tmp_path: Path) -> None:
    """They have nothing of the parent's; a checkpointer cannot be sent to them."""
    code = """
tier, ckpt = make("run")
with ckpt, tier:
    ckpt.save_async({"net": net}, step=1)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(math.sqrt, [4, 9]) == [2, 3]
    try:
        pickle.dumps(ckpt)
    except TypeError:
        print("no pickle", flush=True)
"""
    script = start(HELD + code, tmp_path)
    assert script.line() == "no pickle"
    script.end()
    assert weights(tmp_path / "run") == {1: 1.0}


# Ends.


def test_a_process_that_ends_at_once_leaves_whole_steps_only(start: Any, tmp_path: Path) -> None:
    """Case 40: `os._exit` asks nobody; the next run finds what was whole, and saves that step."""
    code = """
def end_while(method):
    tier, ckpt = make(method, method)
    with ds.Checkpointer(os.path.join(sys.argv[1], method)) as first:
        first.save({"net": net}, step=1)
    step()
    ckpt.save_async({"net": net}, step=2)
    if method not in ("begin", "write"):  # which hold back what is copied, too
        ckpt.fence()
    assert tier.reached.wait(30)
    os._exit(0)

for method in ("begin", "write", "seal", "commit"):
    assert fork(end_while, method) == 0
"""
    start(HELD + code, tmp_path).end()
    for path in tmp_path.iterdir():
        assert weights(path) == {1: 1.0}
        with ds.Checkpointer(path) as ckpt:
            ckpt.save({"net": {"weight": torch.full((5, 5), 7.0)}}, step=2)
        assert weights(path) == {1: 1.0, 2: 7.0}
        assert not ZarrTier(str(path)).incomplete()


def test_a_process_that_ends_right_after_the_call_leaves_whole_steps_only(
    start: Any, tmp_path: Path
) -> None:
    """Case 40: at whatever moment of the save that is."""
    code = """
def save_and_end(last):
    tier, ckpt = make(str(last))
    tier.gate.set()
    for n in range(last):
        ckpt.save_async({"net": net}, step=n)
        step()
    ckpt.save_async({"net": net}, step=last)
    os._exit(0)

for last in range(4):
    assert fork(save_and_end, last) == 0
"""
    start(HELD + code, tmp_path).end()
    for path in tmp_path.iterdir():
        found = weights(path)
        assert found == {n: 1.0 - n for n in found} and len(found) <= int(path.name) + 1


def test_a_normal_end_stores_what_is_under_way(start: Any, tmp_path: Path) -> None:
    """Nobody has closed it, and most of it has not even been copied."""
    code = """
tier, ckpt = make("run")
ckpt.save_async({"net": net}, step=1)
assert tier.reached.wait(30)
threading.Timer(0.2, tier.gate.set).start()
"""
    start(HELD + code, tmp_path).end()
    assert weights(tmp_path / "run") == {1: 1.0}
