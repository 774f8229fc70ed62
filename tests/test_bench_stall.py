"""The stall benchmark runs, judges what it measured, and goes on past whoever fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.extended

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "bench_stall.py"
NBYTES = 10**9


def module(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return __import__(name)


# A run of the whole.


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    place = tmp_path_factory.mktemp("bench")
    (place / "work").mkdir()
    options = {
        "--contenders": "datastates, lazy;safetensors",
        "--work": "mix",
        "--gib": "0.008",
        "--dir": str(place / "work"),
        "--out": str(place / "out"),
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--no-set-up", *sum(options.items(), ())],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return place, done.stdout


@pytest.fixture(scope="module")
def work(run: tuple[Path, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run[0] / "out" / "bench_stall.json").read_text())
    return found["works"]["mix"]


@pytest.mark.slow
def test_a_run_measures_everybody_in_every_phase(work: dict[str, Any]) -> None:
    (only,) = work["rounds"]
    assert set(only) == {"no checkpoints", "datastates, lazy", "safetensors"}
    assert work["failures"] == {}
    for name in ("datastates, lazy", "safetensors"):
        phases = [p["phase"] for p in only[name]["phases"]]
        assert phases[:4] == ["baseline", "setup", "first", "alone"]
        assert phases[4:] == ["interval", "interval", "exact", "cold", "warm"]
        runs = {p["interval"]: p for p in only[name]["phases"] if p["phase"] == "interval"}
        assert (runs[1]["saves"], len(runs[1]["iteration_s"])) == (4, 4)
        assert (runs[5]["saves"], len(runs[5]["iteration_s"])) == (1, 5)
        resident = {p["phase"]: p["resident"] for p in only[name]["phases"] if "resident" in p}
        assert resident["cold"] <= 0.01
        assert resident["warm"] >= 0.99


@pytest.mark.slow
def test_a_run_leaves_data_and_pictures_and_nothing_else(
    run: tuple[Path, str], work: dict[str, Any]
) -> None:
    assert list((run[0] / "work").iterdir()) == []
    pictures = sorted((run[0] / "out").glob("*.png"))
    assert [p.name for p in pictures] == [
        "bench_stall_end_to_end.png",
        "bench_stall_per_save.png",
        "bench_stall_speed.png",
    ]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in pictures)
    assert str(run[0]) not in json.dumps(work)


@pytest.mark.slow
def test_a_run_shows_every_table_and_every_verdict(
    run: tuple[Path, str], work: dict[str, Any]
) -> None:
    assert all(f"every {k}" in run[1] for k in (1, 5))
    verdicts = [li for li in run[1].splitlines() if ": PASS  " in li or ": FAIL  " in li]
    assert len(verdicts) == len(work["checks"]) > 0


# What the figures mean.


def trial(stall_s: float = 0.0, iteration_s: float = 1.0, **others: Any) -> dict[str, Any]:
    """Return a trial of one save at each of two iterations, the first of all twice as long."""

    def phase(name: str, end: float, **values: Any) -> dict[str, Any]:
        return {"phase": name, "start": 0.0, "end": end, "cpu_s": 3.0, **values}

    took = {"call_s": [stall_s, stall_s], "fence_s": [0.5, 0.0]}
    phases = [
        phase("baseline", 3.0, iteration_s=[1.0, 1.0, 1.0]),
        phase("first", 3.0, call_s=2 * stall_s, fence_s=0.0, iteration_s=1.0, budget=100 << 20),
        phase("alone", 2.0, call_s=stall_s),
        phase("interval", 4.0, interval=1, saves=2, iteration_s=[iteration_s] * 2, **took),
        phase("cold", 9.0, seconds=4.0, resident=0.0),
        phase("warm", 9.0, seconds=0.2, resident=1.0),
    ]
    raw = {"write": 1e9, "read": 5e8, "memcpy": 5e9}
    return {"phases": phases, "error": None, "extra_nbytes": 130 << 20, "raw": raw, **others}


def test_figures_of_a_trial_are_ratios_to_its_own_iterations_and_raw_rates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = module(monkeypatch, "stall_report")
    found = report.figures(trial(stall_s=0.25, iteration_s=1.25), NBYTES)
    assert found["stall_s@1"] == pytest.approx((0.25 + 0.25 + 0.5) / 2)
    assert found["stall_all_s@1"] == pytest.approx((0.5 + 1.0) / 3)
    assert found["end_to_end@1"] == pytest.approx(4 / 2)
    assert found["bound@1"] == 1
    assert found["persisted"] == pytest.approx(0.5)
    assert found["cpu_s_per_gib"] == pytest.approx(3 * 2**30 / 1e9)
    assert (found["cold"], found["warm"]) == pytest.approx((0.5, 1.0))
    assert found["speed@1"] == pytest.approx(1 / ((0.75 + 1.25) / 2))


def test_the_bound_is_the_disk_where_that_is_slower_than_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = module(monkeypatch, "stall_report")
    slow = {"write": 2.5e8, "read": 1e9, "memcpy": 1e9}
    found = report.figures(trial(raw=slow), NBYTES)
    assert found["bound@1"] == pytest.approx(4)
    assert found["over_bound@1"] == pytest.approx(4 / 8)


def test_targets_are_judged_by_the_median_of_the_rounds_ratios(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = module(monkeypatch, "stall_report")
    rounds = [
        {"datastates, lazy": trial(ours), "DCP async_save": trial(theirs)}
        for ours, theirs in ((0.0, 1.0), (1.0, 10.0), (2.0, 2.0))
    ]
    checks = {c.target: c for c in report.check(rounds, NBYTES)}
    stall = checks["stall per save against DCP async_save"]
    assert stall.value == pytest.approx((4 + 0.5) / (40 + 0.5))
    assert not stall.passed
    memory = checks["extra memory over the budget, MiB"]
    assert (memory.value, memory.passed) == (30, True)
    assert "stall per save against Orbax" not in checks


def test_who_is_missing_or_failed_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    report = module(monkeypatch, "stall_report")
    gone = {"phases": [{"phase": "not here", "reason": "no wheel"}], "extra_nbytes": None}
    rounds = [
        {"Orbax": trial(error=None) | gone, "DCP save": trial()},
        {"Orbax": trial(error=None) | gone, "DCP save": trial(error="OSError: full")},
    ]
    assert report.failures(rounds) == {
        "Orbax": "round 1: not run: no wheel; round 2: not run: no wheel",
        "DCP save": "round 2: failed: OSError: full",
    }
    assert "Orbax" not in report.summarize(rounds, NBYTES)


# Who fails, and who cheats.


def watched(monkeypatch: pytest.MonkeyPatch, place: Path, code: str, deadline_s: float) -> Any:
    record = place / "record"
    record.write_text('{"phase": "setup"}\n')
    command = [sys.executable, "-c", code]
    return module(monkeypatch, "stall_watch").watch(command, record, place / "log", deadline_s)


def test_a_trial_that_fails_keeps_its_phases_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = watched(monkeypatch, tmp_path, "raise OSError('no room')", 60)
    assert found["error"] == "OSError: no room"
    assert [p["phase"] for p in found["phases"]] == ["setup"]


def test_a_trial_that_hangs_is_ended_with_all_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "lives")  # closed once the last that holds it has ended
    lives = os.open(tmp_path / "lives", os.O_RDONLY | os.O_NONBLOCK)
    code = "import os, signal; os.fork(); f = open('lives', 'wb', 0); f.write(b'x'); signal.pause()"
    monkeypatch.chdir(tmp_path)
    found = watched(monkeypatch, tmp_path, code, 3)
    assert "not done after 3 s" in found["error"]
    assert "'setup'" in found["error"]
    os.set_blocking(lives, True)
    with open(lives, "rb") as file:
        assert file.read() == b"xx"


def test_a_peer_that_is_not_installed_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = module(monkeypatch, "bench_stall")
    monkeypatch.setattr(bench, "ENVIRONMENTS", tmp_path)
    one = bench.Bench(tmp_path, bench.Options(8, 8, 1, 1, (1,), 60), settle=False)
    assert one.trial("mix", "Orbax")["phases"] == [
        {"phase": "not here", "reason": "not installed: run benchmarks/peers/setup"}
    ]
    (tmp_path / "orbax.failed").write_text("ERROR: no matching distribution\n")
    (phase,) = one.trial("mix", "Orbax")["phases"]
    assert phase["reason"] == "ERROR: no matching distribution"


def test_a_contender_that_saves_a_later_state_than_the_calls_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, contenders = module(monkeypatch, "stall_train"), module(monkeypatch, "contenders")
    stall = module(monkeypatch, "stall_contender")

    class Late(stall.InTraining, contenders.TorchSave):
        name = "late"
        place = contenders.TorchSave.place

        def save(self, state: Any, number: int) -> Any:
            return partial(contenders.TorchSave.save, self, state, number)

    monkeypatch.setitem(train.PEERS, "late", Late)
    job = {"contender": "late", "work": "mix", "mib": 8, "tokens": 8, "iterations": 1}
    job |= {"baseline": 1, "intervals": [1], "root": str(tmp_path)}
    with pytest.raises(RuntimeError, match="tensors are not those of the call"):
        train.Trial(job | {"record": str(tmp_path / "record")}).run()


def test_the_mix_has_equal_shards_one_large_tensor_and_a_crowd_of_tiny_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = module(monkeypatch, "stall_work")
    shapes = work.mix_shapes(4096)
    sizes = {name: 4 * work.prod(shape) for name, shape in shapes.items()}
    assert sum(sizes.values()) == pytest.approx(4 << 30, rel=0.001)
    shards = [size for name, size in sizes.items() if name.startswith("shard")]
    assert len(set(shards)) == 1
    assert shards[0] == pytest.approx(50e6, rel=0.02)
    assert sum(shards) == pytest.approx(0.8 * (4 << 30), rel=0.01)
    assert sum(size <= 16 << 10 for size in sizes.values()) == 2000
