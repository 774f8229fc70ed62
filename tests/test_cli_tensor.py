"""`datastates show STEP TENSOR`: statistics that numpy agrees with, in memory that stays small."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from cli_support import Cli, damage, save, strict_json


def reference(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    """The statistics, from numpy, in one go."""
    plain = np.abs(values.astype(complex)) if values.dtype.kind == "c" else values.astype(float)
    finite = plain[np.isfinite(plain)]
    exact = values if values.dtype.kind in "biu" else finite
    return {
        "elements": values.size,
        "nan": int(np.isnan(plain).sum()),
        "inf": int(np.isinf(plain).sum()),
        "zeros": int((plain == 0).sum()),
        **({"min": exact.min().item(), "max": exact.max().item()}),
        **({"mean": pytest.approx(finite.mean()), "std": pytest.approx(finite.std())}),
    }


def odd(*shape: int) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(0).normal(1.0, 2.0, shape)
    values[0, :4] = [np.nan, np.inf, -np.inf, 0.0]
    return values


ARRAYS = {
    "float64": odd(50, 40),
    "float32 in many chunks": odd(3000, 1000).astype(np.float32),
    "float16": odd(50, 40).astype(np.float16),
    "bfloat16": odd(50, 40).astype(ml_dtypes.bfloat16),
    "float8_e4m3fn": odd(50, 40).astype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": odd(50, 40).astype(ml_dtypes.float8_e5m2),
    "complex64": (odd(50, 40) * (1 + 2j)).astype(np.complex64),
    "bool": odd(50, 40) > 1,
    "int64": np.array([[-(2**63), 0, 2**63 - 1]]),
    "uint64": np.array([2**64 - 1, 1, 1, 2**63], np.uint64),
    "int8": np.arange(-5, 6, dtype=np.int8),
    "scalar": np.array(7.5),
    "far from zero": 1e8 + odd(50, 40),
    "small": odd(50, 40) * 1e-310,
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # casts of NaN and infinity, in making ARRAYS
@pytest.mark.parametrize("name", ARRAYS)
def test_statistics_of_an_array(cli: Cli, tmp_path: Path, name: str) -> None:
    save(tmp_path / "r", {"a": ARRAYS[name]})

    found = strict_json(cli("show", "r", "latest", "a", "--json"))

    expected = reference(ARRAYS[name])
    assert {key: found[key] for key in expected} == expected
    bars = found["histogram"]
    assert sum(bar["count"] for bar in bars) == found["elements"] - found["nan"] - found["inf"]
    assert 1 <= len(bars) <= 16 and bars[0]["start"] == pytest.approx(float(found["min"]))
    assert cli("show", "r", "latest", "a").exit_code == 0


def test_sums_beyond_a_float64_are_not_told(cli: Cli, tmp_path: Path) -> None:
    save(tmp_path / "r", {"a": np.array([1e308, 1e308, -1e308])})

    found = strict_json(cli("show", "r", "1", "a", "--json"))

    assert (found["min"], found["max"], found["std"]) == (-1e308, 1e308, None)
    assert sum(bar["count"] for bar in found["histogram"]) == 3


def test_statistics_of_nothing(cli: Cli, tmp_path: Path) -> None:
    save(tmp_path / "r", {"none": np.zeros((0, 3)), "nan": np.full(5, np.nan)})

    found = strict_json(cli("show", "r", "1", "nan", "--json"))
    assert (found["nan"], found["min"], found["histogram"]) == (5, None, [])
    assert "elements 0" in cli("show", "r", "1", "none").stdout


def test_an_alias_is_shown_as_what_it_shares(cli: Cli, tmp_path: Path) -> None:
    whole = torch.arange(100.0)
    save(tmp_path / "r", {"a": whole, "b": whole, "part": whole[10:20]})

    assert "→ a" in cli("show", "r", "1", "b").stdout
    assert "→ a, a part of it; the values are the whole's" in cli("show", "r", "1", "part").stdout
    assert strict_json(cli("show", "r", "1", "b", "--json"))["max"] == 99.0


def test_an_array_is_found_by_its_path_too(cli: Cli, tmp_path: Path) -> None:
    save(tmp_path / "r", {"optim": {"state": {0: {"exp avg": torch.ones(3)}}}})

    assert strict_json(cli("show", "r", "1", "optim/state/0/exp avg", "--json"))["mean"] == 1.0


def test_statistics_of_a_damaged_array_are_refused(cli: Cli, three_steps: Path) -> None:
    damage(three_steps / "step-0000000003" / "model" / "w" / "c.0.0")

    result = cli("show", three_steps, "3", "model/w")

    assert result.exit_code == 1 and "fails its checksum" in result.stderr
    assert result.stdout == ""


SHOWS_IN_LITTLE_MEMORY = """
import resource, sys
from datastates.cli import main
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
main(["show", sys.argv[1], "1", "a"], standalone_mode=False)
print("grown", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
print("torch", "torch" in sys.modules)
"""


def test_a_large_array_is_described_in_little_memory_and_without_torch(tmp_path: Path) -> None:
    save(tmp_path / "r", {"a": np.ones((10000, 8192), np.float32)})

    done = subprocess.run(
        [sys.executable, "-c", SHOWS_IN_LITTLE_MEMORY, tmp_path / "r"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )

    *shown, grown, torch_loaded = done.stdout.splitlines()
    assert ["mean", "1"] in [line.split() for line in shown]
    assert int(grown.split()[1]) < 160 << 10  # KiB; the array has 320 MiB
    assert torch_loaded == "torch False"
