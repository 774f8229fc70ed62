"""A step that a later version wrote is no damage: nothing older is taken in its place."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path

import msgpack
import pytest
from crc32c import crc32c

import datastates as ds


def test_a_newest_step_of_a_later_version_is_not_passed_over(tmp_path: Path) -> None:
    ckpt = ds.Checkpointer(tmp_path)
    for step in (1, 2):
        ckpt.save({"x": step}, step=step)
    file = tmp_path / "step-0000000002" / ".datastates" / "manifest.0" / "c.0"
    manifest = msgpack.unpackb(file.read_bytes()[:-4])
    packed = msgpack.packb(manifest | {"format": 99})
    file.write_bytes(packed + struct.pack("<I", crc32c(packed)))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ds.NewerFormatError, match=r"format 99.*upgrade"):
            ckpt.restore()
    assert ckpt.restore(step=1) == {"x": 1}
    ckpt.close()
