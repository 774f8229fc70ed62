"""The benchmarks run and say what they should; how fast anything is, is not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.extended

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "bench_local.py"
NAMES = ("datastates", "safetensors")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    place = tmp_path_factory.mktemp("bench")
    (place / "work").mkdir()
    done = bench(
        "--quick",
        "--mib",
        "8",
        "--state",
        "gpt",
        "--contenders",
        ",".join(NAMES),
        "--dir",
        str(place / "work"),
        "--out",
        str(place / "out"),
    )
    assert done.returncode == 0, done.stderr
    return place, done.stdout


@pytest.fixture(scope="module")
def result(run: tuple[Path, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run[0] / "out" / "bench_local.json").read_text())
    return found


@pytest.mark.slow
def test_the_local_benchmark_measures_everybody_in_every_phase(result: dict[str, Any]) -> None:
    assert set(result["states"]) == {"gpt"}
    for state in result["states"].values():
        (only,) = state["rounds"]
        assert set(only) == {"save_first", "save", "cold", "warm"}
        for phase, found in only.items():
            raw = set() if phase == "warm" else {"raw"}
            assert set(found) == {*NAMES, *raw}
            assert all(m["seconds"] > 0 and m["cpu_s"] >= 0 for ms in found.values() for m in ms)
        assert all(m["resident"] <= 0.01 for ms in only["cold"].values() for m in ms)
        assert all(m["resident"] >= 0.99 for ms in only["warm"].values() for m in ms)


@pytest.mark.slow
def test_the_local_benchmark_compares_with_raw_within_the_round(result: dict[str, Any]) -> None:
    for state in result["states"].values():
        raw = [m["seconds"] for m in state["rounds"][0]["save"]["raw"]]
        ours = state["rounds"][0]["save"]["datastates"][0]["seconds"]
        found = state["summary"]["save"]["datastates"]["ratio_to_raw"]
        assert len(raw) == 2
        assert found["median"] == pytest.approx(sum(raw) / 2 / ours)


@pytest.mark.slow
def test_the_local_benchmark_judges_every_target(
    run: tuple[Path, str], result: dict[str, Any]
) -> None:
    lines = [line for line in run[1].splitlines() if ": PASS  " in line or ": FAIL  " in line]
    targets = [check["target"] for check in result["states"]["gpt"]["checks"]]
    assert targets == [
        "datastates: save against raw",
        "datastates: cold restore against raw",
        "datastates: save against safetensors",
        "datastates: warm restore against safetensors",
        "datastates: CPU of save against safetensors",
    ]
    assert len(lines) == len(targets)


@pytest.mark.slow
def test_the_local_benchmark_leaves_a_picture_and_nothing_else(run: tuple[Path, str]) -> None:
    assert list((run[0] / "work").iterdir()) == []
    assert (run[0] / "out" / "bench_local.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_local_benchmark_names_no_host_and_no_path(
    run: tuple[Path, str], result: dict[str, Any]
) -> None:
    assert str(run[0]) not in json.dumps(result)
    assert set(result["machine"]) == {
        "cores",
        "memory_gib",
        "kernel",
        "python",
        "file_system",
        "versions",
    }


def test_the_local_benchmark_refuses_a_disk_that_is_too_small(tmp_path: Path) -> None:
    done = bench("--mib", "100000000", "--state", "gpt", "--dir", str(tmp_path))
    assert done.returncode == 1
    assert "GiB of disk are needed" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_states_of_the_benchmark_have_the_shapes_that_they_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    import states

    assert states.state_tensors("gpt", 2048) == 444
    assert states.state_nbytes("gpt", 2048) == pytest.approx(2 << 30, rel=0.02)
    sizes = [tensor.nbytes for _, tensor in states.tensors(states.make_state("small", 100))]
    assert len(sizes) == 100
    assert 1024 <= min(sizes) < max(sizes) <= 4096


def test_the_benchmark_notices_a_bit_that_was_not_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    import states
    import torch

    state = states.make_state("small", 10)
    assert states.is_exact(state)
    state["model"]["leaf.7"].view(torch.int32)[3] ^= 1
    assert not states.is_exact(state)
