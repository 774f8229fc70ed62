"""Takes a checkpoint's files apart and puts forged ones in their place, with a right checksum."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
from crc32c import crc32c

MANIFEST = Path(".datastates/manifest.0/c.0")
FIELDS = ("node", "dtype", "shape", "chunk", "offset", "inline", "alias", "sums")
"""Of an array's record in a manifest."""


def with_checksum(content: bytes) -> bytes:
    return content + struct.pack("<I", crc32c(content))


def read_manifest(step: Path) -> dict[str, Any]:
    """Return a step's manifest as plain msgpack values."""
    found: dict[str, Any] = msgpack.unpackb((step / MANIFEST).read_bytes()[:-4])
    return found


def write_manifest(step: Path, packed: bytes) -> None:
    """Put any bytes in the place of the manifest."""
    (step / MANIFEST).write_bytes(with_checksum(packed))


def forge_manifest(step: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest."""
    content = read_manifest(step)
    change(content)
    write_manifest(step, msgpack.packb(content))


def forge_array(step: Path, which: str, /, **fields: Any) -> None:
    """Change the record of one array: `shape=[2]`."""

    def change(content: dict[str, Any]) -> None:
        record = next(record for record in content["arrays"] if record[0] == which)
        for name, value in fields.items():
            record[FIELDS.index(name)] = value

    forge_manifest(step, change)


def forge_skeleton(step: Path, skeleton: Any) -> None:
    """Put another state in the place of the one that was saved; bytes go in as they are."""
    packed = skeleton if isinstance(skeleton, bytes) else msgpack.packb(skeleton)
    forge_manifest(step, lambda content: content.update(skeleton=packed))


def forge_record(step: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the commit record, which is the root `zarr.json`."""
    content = json.loads((step / "zarr.json").read_bytes())
    change(content)
    (step / "zarr.json").write_text(json.dumps(content))


def node(provider: str, data: Any) -> dict[str, Any]:
    """Return an object of a skeleton, as a provider would have written it."""
    return {"$": provider, "v": data}


def ref(index: int) -> dict[str, Any]:
    """Return a reference to an array."""
    return {"$": "", "v": index}
