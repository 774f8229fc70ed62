"""The commands verify and prune, and all of them as real processes."""

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_support import Cli, damage, die_in_a_save, strict_json

import datastates as ds
from datastates.locations import open_tier
from datastates.plan import Plan

DATASTATES = str(Path(sys.executable).parent / "datastates")


def steps(run: Path) -> list[int]:
    return ds.Checkpointer(run).steps()


# verify


def test_verify_of_an_intact_step(cli: Cli, three_steps: Path) -> None:
    result = cli("verify", three_steps)

    assert result.exit_code == 0
    assert result.stdout.startswith("step 3: ok (2 arrays, 60 B at ") and result.stderr == ""


def test_verify_names_what_is_damaged_and_why(cli: Cli, three_steps: Path) -> None:
    damage(three_steps / "step-0000000002" / "model" / "w" / "c.0.0")
    (three_steps / "step-0000000002" / "model" / "b" / "c.0").unlink()

    result = cli("verify", three_steps, "2")
    report = strict_json(cli("verify", three_steps, "2", "--json"))

    assert result.exit_code == 1
    assert "step 2: damaged" in result.stdout
    assert "model/w: chunk 0 fails its checksum" in result.stdout
    assert "model/b: model/b/c.0 is missing" in result.stdout
    assert report["ok"] is False
    assert [d["name"] for d in report["steps"][0]["damaged"]] == ["model/w", "model/b"]


def test_verify_all_goes_on_after_a_damaged_step(cli: Cli, three_steps: Path) -> None:
    damage(three_steps / "step-0000000001" / ".datastates" / "manifest.0" / "c.0")

    result = cli("verify", three_steps, "--all")
    report = strict_json(cli("verify", three_steps, "--all", "--json"))

    assert result.exit_code == 1
    assert "the manifest fails its checksum" in result.stdout
    assert "step 2: ok" in result.stdout and "step 3: ok" in result.stdout
    assert [s["ok"] for s in report["steps"]] == [False, True, True]


# prune


def test_a_dry_run_shows_what_would_go_and_removes_nothing(cli: Cli, three_steps: Path) -> None:
    result = cli("prune", three_steps, "--keep-last", 1, "--dry-run")

    actions = [line.split()[:2] for line in result.stdout.splitlines() if "step-" in line]
    assert actions == [["remove", "1"], ["remove", "2"], ["keep", "3"]]
    assert "remove 2 steps (120 B), keep 1" in result.stdout
    assert steps(three_steps) == [1, 2, 3]


def test_prune_asks_first(cli: Cli, three_steps: Path) -> None:
    no = cli("prune", three_steps, "--keep-last", 1, input="n\n")
    assert steps(three_steps) == [1, 2, 3]
    nobody = cli("prune", three_steps, "--keep-last", 1)
    assert steps(three_steps) == [1, 2, 3]
    yes = cli("prune", three_steps, "--keep-last", 1, input="y\n")

    assert steps(three_steps) == [3]
    assert (no.exit_code, nobody.exit_code, yes.exit_code) == (0, 2, 0)
    assert "nothing was removed" in no.stderr and "--yes" in nobody.stderr
    assert "removed 2 steps" in yes.stderr


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        ([], [1, 2, 3]),
        (["--keep-last", 2], [2, 3]),
        (["--keep-every", 2], [2, 3]),
        (["--keep-best", "loss:min:1"], [2, 3]),
        (["--keep-best", "loss:max:1"], [1, 3]),
        (["--keep-last", 1, "--keep-best", "loss:min:2"], [2, 3]),
    ],
    ids=str,
)
def test_what_a_rule_keeps(cli: Cli, three_steps: Path, rules: list[Any], left: list[int]) -> None:
    result = cli("prune", three_steps, *rules, "--yes", "--json")

    assert steps(three_steps) == left
    report = strict_json(result)
    assert [s["step"] for s in report["keep"]] == left and report["failed"] == []
    assert report["done"] is (len(left) < 3)


def test_prune_sweeps_what_a_dead_saver_left_and_not_what_a_live_one_writes(
    cli: Cli, three_steps: Path
) -> None:
    """Case 88."""
    die_in_a_save(three_steps)
    writer = open_tier(three_steps).begin(8, Plan((), (), (), 0, 0))

    result = cli("prune", three_steps, "--yes")

    assert result.exit_code == 0 and "removed 1 step" in result.stderr
    assert (three_steps / "step-0000000008").exists()
    assert not (three_steps / "step-0000000009").exists()
    assert steps(three_steps) == [1, 2, 3]
    writer.abort()


def test_prune_never_counts_a_damaged_step_as_one_that_is_kept(cli: Cli, three_steps: Path) -> None:
    damage(three_steps / "step-0000000003" / ".datastates" / "manifest.0" / "c.0")

    result = cli("prune", three_steps, "--keep-last", 1, "--yes")

    assert steps(three_steps) == [2, 3]
    assert "the manifest fails its checksum" in result.stdout


def test_a_step_that_cannot_be_removed_is_reported(
    cli: Cli, three_steps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 95."""
    unlink = os.unlink

    def busy(path: Any, **options: Any) -> None:
        if "step-0000000001" in str(path):
            raise OSError(16, "Device or resource busy")
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", busy)
    result = cli("prune", three_steps, "--keep-last", 1, "--yes")

    assert result.exit_code == 4 and "Device or resource busy" in result.stderr
    assert steps(three_steps) == [1, 3]


# As processes


def test_a_reader_that_goes_away_gets_no_traceback(three_steps: Path) -> None:
    for arguments in (["list"], ["show"], ["show", "--json"], ["verify"]):
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(
            [DATASTATES, arguments[0], three_steps, *arguments[1:]],
            check=False,
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=60,
        )
        os.close(writing)
        assert (done.returncode, done.stderr) == (141, b"")


def test_output_that_is_closed_is_no_error(three_steps: Path) -> None:
    command = f"{DATASTATES} list {three_steps} >&-"
    done = subprocess.run(command, shell=True, check=False, capture_output=True, timeout=60)

    assert (done.returncode, done.stderr) == (0, b"")


def test_nothing_heavy_is_imported_to_look_at_steps(three_steps: Path) -> None:
    code = """if True:
        import sys
        from datastates.cli import main
        for arguments in (["list"], ["show"], ["verify"], ["prune"]):
            main([arguments[0], sys.argv[1], *arguments[1:]], standalone_mode=False)
        assert not {"torch", "rich.progress", "safetensors"} & set(sys.modules)
        """
    subprocess.run([sys.executable, "-c", code, three_steps], check=True, timeout=60)


def test_on_a_terminal_there_are_a_progress_bar_and_colours(three_steps: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    environment.pop("NO_COLOR", None)
    done = subprocess.run(
        [DATASTATES, "verify", three_steps],
        check=False,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment,
        timeout=60,
    )
    os.close(theirs)
    bar = os.read(ours, 1 << 16).decode()
    os.close(ours)

    assert done.returncode == 0 and done.stdout.startswith(b"step 3: ok")
    assert "step 3 " in bar and "\x1b[" in bar and b"\x1b[" not in done.stdout
