"""Takes a checkpoint's files apart and puts forged ones in their place, with a right checksum."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
from crc32c import crc32c

Forge = Callable[[Path], object]
"""Forges the directory of one step."""


class ImpossibleError(Exception):
    """This step cannot be forged here; says why."""


STEP = "step-0000000001"
RESTORES = frozenset({"restore", "restore_into"})
READS = RESTORES | {"verify"}
INFO = frozenset({"info"})


class Cases(dict[str, tuple[Forge, frozenset[str]]]):
    """Hostile steps by name: how each is forged, and which calls must refuse it."""

    def add(self, refused: frozenset[str], **forges: Forge) -> None:
        assert not self.keys() & forges.keys()
        self.update({name: (forge, refused) for name, forge in forges.items()})

    def add_each(
        self, refused: frozenset[str], what: str, values: list[Any], forge: Callable[[Any], Forge]
    ) -> None:
        """Add a step for each of some values, named after it."""
        for i, value in enumerate(values):
            name = f"{what}_{i}_{re.sub('[^0-9A-Za-z]+', '_', repr(value)[:60])}"
            self.add(refused, **{name: forge(value)})


MANIFEST = Path(".datastates/manifest.0/c.0")
IMAGE = Path(".datastates/image.0")
FIELDS = ("node", "dtype", "shape", "chunk", "offset", "inline", "alias", "sums")
"""Of an array's record in a manifest."""


def data_file(step: Path) -> Path:
    """Return the file with the data of `model/w`, whatever the layout."""
    return step / IMAGE if (step / IMAGE).exists() else step / "model/w/c.0"


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


def in_state(value: Any) -> Forge:
    """Put a forged value where the state holds a plain one."""

    def change(content: dict[str, Any]) -> None:
        skeleton = msgpack.unpackb(content["skeleton"])
        skeleton["log"] = value
        content["skeleton"] = msgpack.packb(skeleton)

    return lambda step: forge_manifest(step, change)
