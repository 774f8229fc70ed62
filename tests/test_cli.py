"""The command line as a user meets it: what it lists and shows, its JSON, its exit codes."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from cli_support import Cli, die_in_a_save, save, strict_json

from datastates.locations import open_tier
from datastates.plan import Plan

# list


def test_list_has_a_line_for_each_step(cli: Cli, three_steps: Path) -> None:
    result = cli("list", "run")

    assert result.exit_code == 0
    first, last = [line.split() for line in result.stdout.splitlines() if "step-" in line][::2]
    assert first[:3] == ["1", "60", "B"] and first[5:] == [
        *("complete", "loss=3", "acc=0.25", "step-0000000001")
    ]
    assert last[0] == "3" and "loss=2" in last
    assert "3 steps, 180 B in run" in result.stdout


def test_list_as_json(cli: Cli, three_steps: Path) -> None:
    save(three_steps, {}, 4, metrics={"loss": float("nan")}, metadata={"commit": "abc"})

    steps = strict_json(cli("list", three_steps, "--json"))["steps"]

    assert [s["step"] for s in steps] == [1, 2, 3, 4]
    assert steps[0]["metrics"] == {"loss": 3.0, "acc": 0.25}
    assert (steps[0]["nbytes"], steps[0]["state"], steps[0]["reason"]) == (60, "complete", None)
    assert steps[3]["metrics"] == {"loss": "NaN"} and steps[3]["metadata"] == {"commit": "abc"}
    assert steps[3]["path"] == str(three_steps / "step-0000000004")


def test_a_half_written_step_of_a_dead_saver_is_listed_as_such(cli: Cli, three_steps: Path) -> None:
    """Case 100."""
    die_in_a_save(three_steps)

    result = cli("list", three_steps)

    assert result.exit_code == 0 and "step 9: its saver is gone" in result.stdout
    row = strict_json(cli("list", three_steps, "--json"))["steps"][-1]
    assert (row["step"], row["state"]) == (9, "incomplete")


def test_a_step_that_is_being_written_is_listed_as_such(cli: Cli, three_steps: Path) -> None:
    """Cases 88 and 100."""
    writer = open_tier(three_steps).begin(9, Plan((), (), (), 0, 0))
    row = strict_json(cli("list", three_steps, "--json"))["steps"][-1]
    writer.abort()

    assert (row["step"], row["state"]) == (9, "being written")
    assert "9" not in cli("list", three_steps).stdout.split()


def test_a_step_of_another_host_is_taken_to_be_written_for_an_hour(
    cli: Cli, three_steps: Path
) -> None:
    die_in_a_save(three_steps)
    lease = three_steps / "step-0000000009.lease"
    lease.write_text("another boot of another host")
    recent = strict_json(cli("list", three_steps, "--json"))["steps"][-1]
    os.utime(lease, (1e9, 1e9))
    old = strict_json(cli("list", three_steps, "--json"))["steps"][-1]

    assert recent["state"] == "being written" and "another host" in recent["reason"]
    assert old["state"] == "incomplete"


def test_looking_at_half_written_steps_changes_nothing(cli: Cli, three_steps: Path) -> None:
    die_in_a_save(three_steps)
    before = {p: p.stat().st_mtime_ns for p in three_steps.rglob("*")}
    cli("list", three_steps)

    assert {p: p.stat().st_mtime_ns for p in three_steps.rglob("*")} == before


def test_an_older_save_of_a_step_is_listed_as_replaced(cli: Cli, three_steps: Path) -> None:
    shutil.copytree(three_steps / "step-0000000002", three_steps / "step-0000000002.1")

    states = [s["state"] for s in strict_json(cli("list", three_steps, "--json"))["steps"]]

    assert states == ["complete", "replaced", "complete", "complete"]


def test_a_step_without_a_readable_record_is_listed_as_damaged(cli: Cli, three_steps: Path) -> None:
    (three_steps / "step-0000000002" / "zarr.json").write_text("{")

    result = cli("list", three_steps)

    assert result.exit_code == 1
    assert "damaged" in result.stdout and "is no commit record" in result.stdout
    assert "step-0000000003" in result.stdout


# What LOCATION and STEP may be


@pytest.mark.parametrize(
    ("step", "found"),
    [
        *((None, 3), ("latest", 3), ("1", 1), ("0001", 1), ("step-0000000001", 1)),
        *(("best:loss", 2), ("best:loss:min", 2), ("best:loss:max", 1), ("best:acc:max", 3)),
    ],
)
def test_ways_to_name_a_step(cli: Cli, three_steps: Path, step: str | None, found: int) -> None:
    result = cli("show", three_steps, *([step] if step else []), "--json")

    assert strict_json(result)["step"] == found


def test_the_path_of_a_step_is_a_location(cli: Cli, three_steps: Path) -> None:
    path = "run/step-0000000002/"

    assert strict_json(cli("show", path, "--json"))["step"] == 2
    assert strict_json(cli("show", path, "model/w", "--json"))["mean"] == 2.0
    assert cli("verify", path).stdout.startswith("step 2: ok")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["list", "nowhere"], 3, "there is no checkpoint in nowhere"),
        (["show", "nowhere"], 3, "there is no checkpoint in nowhere"),
        (["show", "run", "7"], 3, "step 7 is not in"),
        (["show", "run", "best:lss"], 3, "there are: acc, loss"),
        (["show", "run", "1", "model/x"], 3, "do you mean model/w"),
        (["show", "run", "newest"], 2, 'a number, "latest" or "best:METRIC[:max]"'),
        (["show", "run/step-0000000001", "2", "model/w"], 2, "is a step already"),
        (["show", "run", "1", "model/w", "x"], 2, "unexpected extra argument"),
        (["list", "file"], 2, "file is no directory"),
        (["list", "s3://bucket"], 2, "known: memory, zarr"),
        (["verify", "run", "1", "--all"], 2, "not both"),
        (["prune", "run/step-0000000001"], 2, "is one step"),
        (["prune", "run", "--keep-last", "0"], 2, "keep_last must be a whole number from 1"),
        (["prune", "run", "--keep-best", "loss"], 2, "like loss:min:2"),
        (["export", "run"], 2, "--safetensors FILE or --torch FILE"),
        (["export", "run", "--torch", "no/x.pt"], 2, "no directory no"),
        (["export", "run", "--torch", "x.pt", "--part", "modl"], 2, "its parts are: model, n"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_calls_and_missing_things_end_in_a_line(
    cli: Cli, three_steps: Path, arguments: list[str], code: int, message: str
) -> None:
    (three_steps.parent / "file").touch()
    result = cli(*arguments)

    assert result.exit_code == code
    assert message in result.stderr.replace("\n", " ") and result.stdout == ""


@pytest.mark.parametrize("command", [[], ["list"], ["show"], ["verify"], ["prune"], ["export"]])
def test_help_tells_the_exit_codes(cli: Cli, command: list[str]) -> None:
    text = cli(*command, "--help").stdout

    for line in (
        "0  all is well",
        "1  a checkpoint is damaged",
        "2  wrong usage",
        "4  the storage",
    ):
        assert line in text


# show


def test_show_lists_arrays_and_values(cli: Cli, tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    save(
        tmp_path / "r",
        {"model": model, "opt": optimizer},
        metrics={"loss": 2.5},
        metadata={"by": "me"},
    )

    lines = [line.split() for line in cli("show", "r").stdout.splitlines()]

    assert ["metrics", "loss=2.5"] in lines and ["metadata", "by", "me"] in lines
    assert ["model/0.weight", "float32", "(10,", "4)", "160", "B", "1"] in lines
    assert ["model/1.weight", "float32", "(10,", "4)", "→", "model/0.weight"] in lines
    assert ["├──", "model:", "2", "arrays,", "160", "B"] in lines
    assert any(line[-2:] == ["lr:", "0.125"] for line in lines)


def test_show_as_json(cli: Cli, three_steps: Path) -> None:
    found = strict_json(cli("show", three_steps, "2", "--json"))

    assert (found["step"], found["nbytes"], found["path"]) == (
        2,
        60,
        str(three_steps / "step-0000000002"),
    )
    assert found["arrays"][0] == {
        **{"name": "model/w", "dtype": "float32", "shape": [4, 3], "nbytes": 48},
        **{"chunk": [4, 3], "chunks": 1, "alias_of": None},
    }
    assert found["values"] == {
        "model": {"w": {"array": "model/w"}, "b": {"array": "model/b"}},
        "n": 2,
    }


def test_no_text_of_a_checkpoint_reaches_the_terminal_raw(cli: Cli, tmp_path: Path) -> None:
    evil = "\x1b[2J[red]\r\u202e:smile:"
    save(
        tmp_path / "r",
        {evil: evil, "x": {(evil,): [evil]}},
        metrics={evil: 1},
        metadata={evil: evil},
    )

    for arguments in (["list", "r"], ["show", "r"], ["show", "r", "1", evil]):
        result = cli(*arguments)
        shown = result.stdout + result.stderr
        assert not {"\x1b", "\r", "\u202e"} & set(shown)
        assert "\\x1b[2J[red]\\r\\u202e:smile:" in shown.replace("\\\\", "\\")
