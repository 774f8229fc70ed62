"""What the tests of the command line share."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result

import datastates as ds
from datastates.tiers.zarr import ZarrTier

Cli = Callable[..., Result]

_DIES_IN_A_SAVE = """
import os, signal, sys
from datastates.locations import open_tier
from datastates.plan import Plan
writer = open_tier(sys.argv[1]).begin(9, Plan((), (), (), 0, 0))
os.kill(os.getpid(), signal.SIGKILL)
"""


def save(path: Path, state: object, step: int = 1, **options: Any) -> None:
    """Save a state; not durably, which nothing here depends on."""
    with ds.Checkpointer(ZarrTier(str(path), fsync=False), arena_nbytes=8 << 20) as ckpt:
        ckpt.save(state, step=step, **options)


def strict_json(result: Result) -> Any:
    """Return what a command wrote, which must be JSON as the standard has it."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(result.stdout, parse_constant=refuse)


def damage(path: Path) -> None:
    """Change the first byte of a file."""
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


def die_in_a_save(run: Path) -> None:
    """Leave step 9 half-written by a process that was killed."""
    done = subprocess.run([sys.executable, "-c", _DIES_IN_A_SAVE, run], check=False, timeout=60)
    assert done.returncode == -9
