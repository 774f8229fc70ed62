"""One value beyond 4 GiB: no length field overflows, and memory stays bounded."""

import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from support import assert_same

from datastates.memory import available_nbytes

GIB = 1 << 30

CHILD = """
    import sys, numpy as np, torch, datastates as ds

    path, kind, what = sys.argv[1:]
    n = 2**32 + 10
    marks = [0, 2**31, 2**32 - 1, 2**32, n - 1]

    def made():
        if kind == "bytes":
            return bytes(n)
        values = np.zeros(n, np.uint8)
        values[marks] = [1, 2, 3, 4, 5]
        return values if kind == "array" else torch.from_numpy(values)

    with ds.Checkpointer(path, arena_nbytes=256 << 20) as ckpt:
        if what == "save":
            ckpt.save({"value": made(), "after": "it"})
        else:
            value = ckpt.restore()["value"]
            assert len(value) == n
            if kind == "bytes":
                assert value.count(0) == n
            else:
                assert value[marks].tolist() == [1, 2, 3, 4, 5]
                assert np.count_nonzero(np.asarray(value)) == 5
    status = open("/proc/self/status").read()
    print(status.split("VmHWM:")[1].split()[0])
"""


def run(path, kind, what):
    """Save or restore in a process of its own; return its peak memory in bytes."""
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(path), kind, what]
    done = subprocess.run(command, timeout=110, check=True, stdout=subprocess.PIPE, text=True)
    return int(done.stdout) << 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bytes", "tensor"])
def test_a_value_over_4_gib_comes_back(tmp_path, kind):
    """Case 10: exact, and with a peak below 2.5 times its size."""
    if available_nbytes() < 10 * GIB or shutil.disk_usage(tmp_path).free < 10 * GIB:
        pytest.skip("needs 10 GiB of memory and of disk")
    try:
        assert run(tmp_path / "run", kind, "save") < 2.5 * 4 * GIB
        assert run(tmp_path / "run", kind, "restore") < 2.5 * 4 * GIB
    finally:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)


def test_long_values_are_saved_in_pieces_through_a_small_arena(make_ckpt):
    """Case 11: none of them fits into the arena."""
    ckpt = make_ckpt(arena_nbytes=8 << 20)
    rng = np.random.default_rng(0)
    state = {
        "parts": [rng.bytes(20_000_000) for _ in range(3)],
        "text": "ü" * 6_000_000,
        "buffer": bytearray(rng.bytes(9_000_001)),
        "tensor": torch.from_numpy(rng.integers(0, 255, (3, 5_000_003), np.uint8)),
    }
    ckpt.save(state)
    assert ckpt.statistics().arena.budget_nbytes == 8 << 20
    assert_same(state, ckpt.restore())
