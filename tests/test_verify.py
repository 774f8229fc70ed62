"""Verify: whatever differs from what was saved is found, and named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import datastates as ds


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """A step with one array of two chunks' worth of bytes, one scalar, and one group."""
    with ds.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save({"m": {"w": np.arange(20_000.0), "b": np.array(3.0)}}, step=1)
    return tmp_path / "run" / "step-0000000001"


def report(step: Path) -> list[str]:
    return [str(damage) for damage in ds.Checkpointer(step.parent).verify(1).damaged]


def test_a_whole_step_is_ok_and_counts_its_bytes(step: Path) -> None:
    found = ds.Checkpointer(step.parent).verify()
    assert found.ok and found.nbytes == 160_000 and found.arrays == 2


@pytest.mark.parametrize("offset", [0, 80_000, -1, -4])
def test_one_flipped_bit_is_found_even_in_the_stored_checksum(step: Path, offset: int) -> None:
    file = step / "m" / "w" / "c.0"
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    file.write_bytes(data)
    assert report(step) == ["m/w: chunk 0 fails its checksum"]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "{",
        lambda text: json.dumps(json.loads(text) | {"shape": [5]}),
        lambda text: json.dumps(json.loads(text) | {"codecs": []}),
        lambda text: "[" * 100_000,
    ],
)
def test_zarr_metadata_that_would_mislead_a_reader_is_found(step: Path, change) -> None:  # type: ignore[no-untyped-def]
    document = step / "m" / "w" / "zarr.json"
    document.write_text(change(document.read_text()))
    assert report(step) == ["m/w/zarr.json: is missing or does not describe the array"]


def test_a_wrong_scalar_in_the_metadata_is_found(step: Path) -> None:
    document = step / "m" / "b" / "zarr.json"
    document.write_text(json.dumps(json.loads(document.read_text()) | {"fill_value": 4.0}))
    assert report(step) == ["m/b/zarr.json: is missing or does not describe the array"]


def test_a_truncated_file_and_a_missing_one_are_both_named(step: Path) -> None:
    (step / "m" / "b" / "zarr.json").unlink()
    with (step / "m" / "w" / "c.0").open("r+b") as file:
        file.truncate(1000)
    assert len(report(step)) == 2 and "short" in report(step)[1]
