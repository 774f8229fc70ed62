"""Hostile steps: little to read, much to hold, in the commit record and in msgpack."""

from pathlib import Path
from typing import Any

import msgpack
from forging import (
    INFO,
    READS,
    RESTORES,
    Cases,
    Forge,
    data_file,
    forge_array,
    forge_record,
    forge_skeleton,
    node,
    ref,
    with_checksum,
    write_manifest,
)

CASES = Cases()

# Bombs: little to read, much to hold.


def record_text(text: bytes) -> Forge:
    return lambda step: (step / "zarr.json").write_bytes(text) and None


def record_field(path: str, value: Any) -> Forge:
    def change(content: dict[str, Any]) -> None:
        *outer, last = path.split("/")
        place = content["attributes"]
        for key in outer:
            place = place[key]
        place[last] = value

    return lambda step: forge_record(step, change)


def raw_record(path: str, literal: str) -> Forge:
    """Put a literal into the record that json itself would not write."""

    def forge(step: Path) -> None:
        record_field(path, "LITERAL")(step)
        text = (step / "zarr.json").read_text().replace('"LITERAL"', literal)
        (step / "zarr.json").write_text(text)

    return forge


CASES.add(
    INFO,
    json_nests=record_text(b"[" * 4_000_000),
    json_nests_to_the_end=record_text(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    json_of_empty_lists=record_text(b"[" + b"[]," * 2_700_000 + b"[]]"),
    json_number=record_text(b"9" * 8_000_000),
    json_not_utf8=record_text(b'{"attributes": "\xff"}'),
    json_nul=record_text(b"\0" * 100),
    json_of_another_zarr=record_text(b'{"zarr_format": 3, "node_type": "group", "attributes": {}}'),
    metadata_nests=raw_record("metadata", '{"a":' + "[" * 900 + "]" * 900 + "}"),
    metadata_is_a_number=record_field("metadata", 5),
    metrics_is_a_list=record_field("metrics", [1]),
    metric_is_text=record_field("metrics", {"loss": "low"}),
    metric_overflows=raw_record("metrics", '{"loss": 1' + "0" * 400 + "}"),
    nbytes_is_infinite=raw_record("datastates/nbytes", "1e999"),
    nbytes_is_nan=raw_record("datastates/nbytes", "NaN"),
    format_of_the_future=record_field("datastates/format", 2),
    format_is_text=record_field("datastates/format", "1"),
    format_is_nan=raw_record("datastates/format", "NaN"),
    step_is_nan=raw_record("step", "NaN"),
    step_is_another=record_field("step", 2),
)

MEBI = 1 << 20


def as_manifest(packed: bytes) -> Forge:
    return lambda step: write_manifest(step, packed)


def as_skeleton(packed: bytes) -> Forge:
    return lambda step: forge_skeleton(step, packed)


CLAIMS = {
    "array": b"\xdd\xff\xff\xff\xff",
    "map": b"\xdf\xff\xff\xff\xff",
    "text": b"\xdb\xff\xff\xff\xff",
    "bytes": b"\xc6\xff\xff\xff\xff",
    "extension": b"\xc9\xff\xff\xff\xff\x05",
}
for kind, claim in CLAIMS.items():
    CASES.add(READS, **{f"manifest_claims_an_{kind}": as_manifest(claim)})
    CASES.add(READS, **{f"skeleton_claims_an_{kind}": as_skeleton(claim)})
    CASES.add(READS, **{f"skeleton_claims_nested_{kind}s": as_skeleton(claim * 500)})

CASES.add(
    READS,
    manifest_nests=as_manifest(b"\x91" * 60 * MEBI),
    manifest_of_empty_maps=as_manifest(b"\xdd" + (30 * MEBI).to_bytes(4) + b"\x80" * 30 * MEBI),
    manifest_of_empty_lists=as_manifest(b"\xdd" + (60 * MEBI).to_bytes(4) + b"\x90" * 60 * MEBI),
    manifest_of_short_texts=as_manifest(b"\xdd" + (20 * MEBI).to_bytes(4) + b"\xa2ab" * 20 * MEBI),
    manifest_is_too_long=as_manifest(bytes(65 * MEBI)),
    manifest_with_a_heavy_key=as_manifest(
        b"\x81" + b"\xdd" + (20 * MEBI).to_bytes(4) + b"\x80" * 20 * MEBI + b"\x01"
    ),
    nested_claims=as_manifest((b"\xdd" + (30 * MEBI).to_bytes(4)) * 1000 + bytes(31 * MEBI)),
    skeleton_nests=as_skeleton(b"\x91" * 4 * MEBI),
    skeleton_of_empty_maps=as_skeleton(b"\xdd" + (30 * MEBI).to_bytes(4) + b"\x80" * 30 * MEBI),
    skeleton_of_short_texts=as_skeleton(b"\xdd" + (20 * MEBI).to_bytes(4) + b"\xa2ab" * 20 * MEBI),
)
CASES.add(
    RESTORES,
    skeleton_nests_a_thousandfold=as_skeleton(b"\x91" * 1000 + b"\xc0"),
    dicts_nest_a_thousandfold=as_skeleton(b"\x81\xa1a" * 1000 + b"\xc0"),
    tuples_nest=as_skeleton(b"\x82\xa1$\xa5tuple\xa1v\x91" * 300 + b"\xc0"),
    keys_nest=as_skeleton(b"\x82\xa1$\xa4dict\xa1v\x91\x92" * 200 + b"\xc0" * 201),
    extension_in_the_state=as_skeleton(b"\x81\xa3log\xd4\x05\x00"),
    timestamp_in_the_state=as_skeleton(b"\x81\xa3log\xd6\xff\x00\x00\x00\x00"),
)


def packed_array(content: bytes, provider: str = "packed") -> Forge:
    """Put a long value of these bytes into the state; its checksum is right."""

    def forge(step: Path) -> None:
        stored = with_checksum(content)
        data_file(step).write_bytes(stored)
        total = int.from_bytes(stored[-4:], "little")
        fields = {
            "offset": 0,
            "dtype": "uint8",
            "shape": [len(content)],
            "chunk": [len(content)],
            "sums": [total],
        }
        forge_array(step, "model/w", **fields)
        forge_skeleton(step, {"log": node(provider, ref(0))})

    return forge


CASES.add(
    RESTORES,
    packed_empty_maps=packed_array(b"\xdd" + (20 * MEBI).to_bytes(4) + b"\x80" * 20 * MEBI),
    packed_nested_claims=packed_array((b"\xdd" + (8 * MEBI).to_bytes(4)) * 1000 + bytes(9 * MEBI)),
    packed_object=packed_array(msgpack.packb([node("objects", ["pickle", b""])])),
    packed_reference=packed_array(msgpack.packb([ref(0)])),
    packed_number=packed_array(b"\x05"),
    packed_nothing=packed_array(b"\xc1"),
    packed_cut=packed_array(b"\xdd\x00\x00\x10\x00\x01"),
    text_not_utf8=packed_array(b"\xff\xfe", "str"),
)
