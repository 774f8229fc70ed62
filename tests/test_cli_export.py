"""The command export: files that safetensors and torch read, whole or not there."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from cli_support import Cli, damage, save, strict_json

import datastates as ds


def tied_model() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10, bias=False))
    model[1].weight = model[0].weight
    return model.to(torch.bfloat16)


def test_export_to_safetensors(cli: Cli, tmp_path: Path) -> None:
    model = tied_model()
    save(tmp_path / "r", {"model": model, "opt": [torch.ones(3).t(), 5], "name": "x"})

    result = cli("export", "r", "1", "--safetensors", "x.safetensors")

    assert result.exit_code == 0 and "3 tensors" in result.stdout
    assert "model.1.weight is tied to model.0.weight: written twice" in result.stderr
    assert "left out: 2 values" in result.stderr
    found = safetensors.torch.load_file("x.safetensors")
    assert set(found) == {"model.0.weight", "model.1.weight", "opt.0"}
    assert torch.equal(found["model.0.weight"], model[0].weight)
    assert torch.equal(found["model.1.weight"], model[0].weight)
    with safetensors.safe_open("x.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "step": "1"}


def test_export_of_a_part(cli: Cli, tmp_path: Path) -> None:
    save(tmp_path / "r", {"model": tied_model(), "opt": torch.ones(3)})

    report = strict_json(cli("export", "r", "--part", "model", "--safetensors", "m", "--json"))
    cli("export", "r", "--part", "model", "--torch", "m.pt")

    assert (report["tensors"], report["nbytes"]) == (2, Path("m").stat().st_size)
    assert report["tied"] == {"1.weight": "0.weight"}
    model = tied_model()
    model.load_state_dict(safetensors.torch.load_file("m"))
    model.load_state_dict(torch.load("m.pt", weights_only=True))


def test_export_for_torch_load(cli: Cli, tmp_path: Path) -> None:
    model = tied_model()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.arange(3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "opt": optimizer.state_dict(), "n": [1, (2.5, None)]}
    save(tmp_path / "r", state)

    cli("export", "r", "--torch", "x.pt")

    found = torch.load("x.pt", weights_only=True)
    torch.testing.assert_close(found, state, rtol=0, atol=0)
    assert found["model"]["0.weight"].data_ptr() == found["model"]["1.weight"].data_ptr()


def test_export_does_not_overwrite_without_force(cli: Cli, three_steps: Path) -> None:
    file = three_steps.parent / "x.pt"
    file.write_text("mine")

    refused = cli("export", three_steps, "--torch", file)
    assert refused.exit_code == 2 and "--force" in refused.stderr and file.read_text() == "mine"
    assert cli("export", three_steps, "--torch", file, "--force").exit_code == 0
    assert torch.load(file)["n"] == 3


def test_a_failed_export_leaves_what_was_there(
    cli: Cli, three_steps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    file = three_steps.parent / "x.pt"
    file.write_text("mine")
    monkeypatch.setattr(os, "fsync", full)
    result = cli("export", three_steps, "--torch", file, "--force")

    assert result.exit_code == 4 and "No space left on device" in result.stderr
    assert file.read_text() == "mine" and {p.name for p in file.parent.iterdir()} == {"run", "x.pt"}


def test_export_of_a_damaged_step_writes_nothing(cli: Cli, three_steps: Path) -> None:
    damage(three_steps / "step-0000000003" / "model" / "w" / "c.0.0")

    result = cli("export", three_steps, "--safetensors", "x")

    assert result.exit_code == 1 and not Path("x").exists()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"n": 1}, "there is no tensor"),
        ({"a": {"b.c": torch.ones(1)}, "a.b": {"c": torch.ones(1)}}, "two tensors would be called"),
        ({"a": torch.ones(3).to_sparse()}, "safetensors cannot hold it"),
        ({"a": torch.ones(3, dtype=torch.complex128)}, "safetensors cannot hold it"),
        ({"a": torch.ones(3), "p": ds.Pickled(object)}, "--trust"),
    ],
)
def test_what_safetensors_cannot_hold_is_refused(
    cli: Cli, tmp_path: Path, state: Any, message: str
) -> None:
    save(tmp_path / "r", state)

    result = cli("export", "r", "--safetensors", "x")

    assert result.exit_code == 2 and message in result.stderr
    assert {p.name for p in tmp_path.iterdir()} == {"r"}


def test_a_pickle_is_read_when_trusted(cli: Cli, tmp_path: Path) -> None:
    save(tmp_path / "r", {"a": torch.ones(3), "p": ds.Pickled(np.float32)})

    assert cli("export", "r", "--safetensors", "x", "--trust").exit_code == 0


def test_without_the_package_safetensors_the_pip_line_is_printed(
    cli: Cli, three_steps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)

    result = cli("export", three_steps, "--safetensors", "x")

    assert result.exit_code == 2 and "pip install 'datastates[export]'" in result.stderr
