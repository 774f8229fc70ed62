"""A hostile directory ends in a clear error: nothing runs, nothing is written, it costs little.

Each case is read in a process of its own by every reading call: `steps`, `info`, `verify`,
`restore` without a target and into one. The process notes what CPython's audit events tell of
code that is run, imported or opened for writing (`children/guarded.py`).
"""

import os
import pickle
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from children.client import Children
from forging import (
    MANIFEST,
    forge_array,
    forge_manifest,
    forge_record,
    forge_skeleton,
    node,
    ref,
    with_checksum,
    write_manifest,
)

import datastates as ds

Forge = Callable[[Path], None]
NAME = "step-0000000001"
RESTORES = {"restore", "restore_into"}
READS = RESTORES | {"verify"}
MAX_CPU_S, MAX_WALL_S, MAX_NBYTES = 1.0, 10.0, 256 << 20
"""What one call may cost. The second is one of processor time: the machine may be busy."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one checkpoint, into which `children/guarded.py` has a target."""
    base = tmp_path_factory.mktemp("saved")
    model = {
        "w": np.arange(20_000.0),
        "b": np.arange(7, dtype=np.float32),
        "t": torch.ones(3, 4),
    }
    state = {"model": model, "log": [1, "text", None, (1, 2.5)], "rng": ds.RNG()}
    for name in ("warm", "run"):
        with ds.Checkpointer(base / name, arena_nbytes=8 << 20) as ckpt:
            ckpt.save(state, step=1)
    return base


def listing(root: Path) -> list[tuple[Any, ...]]:
    """Return all that is in a tree, with what a change would change."""
    found = []
    for path in sorted([root, *root.rglob("*")]):
        s = path.lstat()
        found.append((str(path), s.st_ino, s.st_mode, s.st_size, s.st_mtime_ns))
    return found


@pytest.fixture
def base(saved: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint, to be forged."""
    shutil.copytree(saved, tmp_path / "base")
    return tmp_path / "base"


# Each case: how the step is forged, and which calls must refuse it.
CASES: dict[str, tuple[Forge, set[str]]] = {}


def case(refused: set[str]) -> Callable[[Forge], Forge]:
    def register(forge: Forge) -> Forge:
        CASES[forge.__name__] = (forge, refused)
        return forge

    return register


def cases(refused: set[str], **forges: Forge) -> None:
    CASES.update({name: (forge, refused) for name, forge in forges.items()})


# Code: pickles, classes, imports.


class Bomb:
    """Its pickle would run a command."""

    def __reduce__(self) -> Any:
        return os.system, ("true",)


def in_state(value: Any) -> Forge:
    """Put a forged value where the state holds a plain one."""

    def forge(step: Path) -> None:
        forge_manifest(step, lambda content: _replace(content, value))

    return forge


def _replace(content: dict[str, Any], value: Any) -> None:
    skeleton = msgpack.unpackb(content["skeleton"])
    skeleton["log"] = value
    content["skeleton"] = msgpack.packb(skeleton)


def class_case(provider: str, module: str, name: str) -> Forge:
    named = [module, name]
    data = {"class": named, "fields": [["args", ["true"]]]}
    return in_state(
        node("objects", ["enum", named, "x", None]) if provider == "enum" else node(provider, data)
    )


cases(
    RESTORES,
    pickled_value=in_state(node("objects", ["pickle", pickle.dumps(Bomb())])),
    pickle_as_manifest=lambda step: write_manifest(step, pickle.dumps(Bomb())),
    pickle_as_chunk=lambda step: (step / "model/w/c.0").write_bytes(pickle.dumps(Bomb())),
    **{
        f"{provider}_of_{module}_{name}": class_case(provider, module, name)
        for provider in ("namedtuple", "dataclass", "enum", "namespace")
        for module, name in (
            ("os", "system"),
            ("subprocess", "Popen"),
            ("builtins", "eval"),
            ("os", "path.join"),
            ("builtins", "object.__subclasses__"),
            ("antigravity", "fly"),
        )
    },
    module_of_torch=in_state(node("torch", ["name", "_dynamo"])),
    function_of_torch=in_state(node("torch", ["name", "load"])),
    unknown_provider=in_state(node("os.system", "true")),
    enum_with_a_hook=in_state(node("objects", ["enum", ["http", "HTTPStatus"], None, ["x"]])),
)
cases(
    {"info"}, pickle_as_record=lambda step: (step / "zarr.json").write_bytes(pickle.dumps(Bomb()))
)


# Names.

for i, name in enumerate(
    [
        "/etc/passwd",
        "../../outside",
        "model/../../outside",
        "model/w/..",
        "..",
        ".",
        "",
        "model//w",
        "model/",
        "model/zarr.json",
        "model/w\0",
        "model\\w",
        "a/b/c",
        "x" * 300,
        7,
        None,
        ["model", "w"],
        b"model/w",
    ]
):
    cases(READS, **{f"name_{i}": lambda step, name=name: forge_array(step, "model/w", node=name)})


# Sizes.

for i, fields in enumerate(
    [
        {"shape": [1 << 61]},
        {"shape": [(1 << 64) - 1]},
        {"shape": [-1]},
        {"shape": [1 << 40], "chunk": [1 << 40]},
        {"shape": [1 << 40], "chunk": [1]},
        {"shape": [0]},
        {"shape": [1] * 65, "chunk": [1] * 65},
        {"shape": [20_000.0]},
        {"shape": [True], "chunk": [True]},
        {"shape": {"0": 1}},
        {"shape": None},
        {"chunk": [0]},
        {"chunk": [-5]},
        {"chunk": [1 << 62]},
        {"chunk": [1, 1]},
        {"offset": -1},
        {"offset": 1 << 63},
        {"offset": 1.5},
        {"dtype": "object"},
        {"dtype": "O"},
        {"dtype": "float64x"},
        {"dtype": ["float64"]},
        {"dtype": None},
        {"sums": []},
        {"sums": [1, 2]},
        {"sums": [-1]},
        {"sums": [1 << 32]},
        {"sums": [0.5]},
        {"sums": "sums"},
        {"inline": b"1234567"},
        {"inline": 5},
        {"alias": [0, 0, 0]},
        {"alias": [1 << 40, 0, 0]},
        {"alias": [-1, 0, 0]},
        {"alias": [1, 1 << 40, 0]},
        {"alias": "alias"},
        {"alias": [0]},
    ]
):
    cases(READS, **{f"size_{i}": lambda step, f=fields: forge_array(step, "model/w", **f)})


@case(READS)
def alias_loop(step: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        for i, record in enumerate(content["arrays"][:3]):
            record[6], record[7] = [(i + 1) % 3, 0, 0], []

    forge_manifest(step, change)


@case(READS)
def two_arrays_in_one_place(step: Path) -> None:
    forge_array(step, "model/b", node="model/w")


for i, head in enumerate(
    [
        {"format": 2},
        {"format": 1 << 63},
        {"format": 0},
        {"format": -1},
        {"format": float("nan")},
        {"format": "1"},
        {"format": None},
        {"rank": -1},
        {"world_size": float("nan")},
        {"nbytes": 1 << 62},
        {"nbytes": None},
        {"arrays": None},
        {"arrays": {}},
        {"arrays": [None]},
        {"arrays": [[]]},
        {"skeleton": None},
        {"skeleton": b""},
        {"skeleton": b"\xa1\xff"},
        {"skeleton": b"\xc1"},
        {"skeleton": {}},
    ]
):
    cases(READS, **{f"head_{i}": lambda step, h=head: forge_manifest(step, lambda c: c.update(h))})


# Files that are none.


def replaced(name: str, make: Callable[[Path], object]) -> Forge:
    """Put something else where a file or directory of the step is."""

    def forge(step: Path) -> None:
        path = step / name
        outside = step.parent.parent / "outside"
        path.rename(outside)
        make(path)

    return forge


def link_out(path: Path) -> None:
    path.symlink_to(next(p for p in path.parents if (p / "outside").exists()) / "outside")


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as s:
        here = os.open(path.parent, os.O_PATH)
        s.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


def make_device(path: Path) -> None:
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero: it never ends
    except PermissionError:
        pytest.skip("only root can make device nodes")


def make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


INSTEAD: dict[str, Callable[[Path], object]] = {
    "a_link": link_out,
    "a_fifo": os.mkfifo,
    "a_device": make_device,
    "a_socket": make_socket,
    "a_directory": lambda path: path.mkdir(),
    "a_sparse_file": make_sparse,
    "an_empty_file": lambda path: path.touch(),
}
for what, make in INSTEAD.items():
    for where, path, refused in (
        ("chunk", "model/w/c.0", READS),
        ("manifest", str(MANIFEST), READS),
        ("record", "zarr.json", {"info"}),
    ):
        if (what, where) not in (("a_sparse_file", "chunk"),):
            CASES[f"{what}_for_the_{where}"] = (replaced(path, make), refused)
for path in ("model/w", "model", ".datastates"):
    CASES[f"a_link_for_{path.replace('/', '_')}"] = (replaced(path, link_out), READS)


@case(READS)
def a_sparse_terabyte_of_pieces(step: Path) -> None:
    """Each piece is there, and wrong."""
    make_sparse(step / "model/w/c.0")
    rows = 4 << 20
    forge_array(step, "model/w", shape=[64 * rows], chunk=[rows], sums=[1] * 64)
    forge_skeleton(
        step,
        {"model": {"w": node("numpy", {"dtype": ["descr", "<f8"], "array": ref(0), "order": "C"})}},
    )


@case(READS)
def a_sparse_terabyte_in_one_chunk(step: Path) -> None:
    make_sparse(step / "model/w/c.0")
    forge_array(step, "model/w", shape=[1 << 30], chunk=[1 << 30], sums=[1])


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


cases(
    {"info"},
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
    CASES[f"manifest_claims_an_{kind}"] = (as_manifest(claim), READS)
    CASES[f"skeleton_claims_an_{kind}"] = (as_skeleton(claim), READS)
    CASES[f"skeleton_claims_nested_{kind}s"] = (as_skeleton(claim * 500), READS)

cases(
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
cases(
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
        (step / "model/w/c.0").write_bytes(stored)
        total = int.from_bytes(stored[-4:], "little")
        fields = {
            "dtype": "uint8",
            "shape": [len(content)],
            "chunk": [len(content)],
            "sums": [total],
        }
        forge_array(step, "model/w", **fields)
        forge_skeleton(step, {"log": node(provider, ref(0))})

    return forge


cases(
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


# Values that a provider cannot make anything of.


def numpy_value(**fields: Any) -> Any:
    return node("numpy", {"dtype": ["descr", "<f8"], "array": ref(0), "order": "C"} | fields)


def tensor_value(**fields: Any) -> Any:
    return node("tensor", {"parameter": False, "grad": False, "array": ref(0)} | fields)


KEY = [1, 2, 3]
MT = {"bit_generator": "MT19937", "state": {"key": [1] * 624, "pos": 1 << 20}}
PHILOX = {"counter": [0] * 4, "key": [0] * 2}
for i, value in enumerate(
    [
        ref(0),
        node("numpy", None),
        node("numpy", {}),
        numpy_value(array=ref(10**6)),
        numpy_value(array=5),
        numpy_value(dtype=["descr", "O"]),
        numpy_value(dtype=["descr", "|O8"]),
        numpy_value(dtype=["descr", [["a", "O"]]]),
        numpy_value(dtype=["descr", "V2000000000"]),
        numpy_value(dtype=["descr", "f8," * 100_000]),
        numpy_value(dtype=["descr", "__import__('os').system('true')"]),
        numpy_value(dtype=["descr", [["x", [["x", [["x", "O"]]]]]]]),
        numpy_value(dtype=["descr", "M8[99999999999999999999Y]"]),
        numpy_value(dtype=["name", "object"]),
        numpy_value(dtype=[]),
        numpy_value(dtype=5),
        node("numpy_value", ["scalar", ["descr", "<f8"], b"short"]),
        node("numpy_value", {"dtype": ["descr", "V0"], "scalar": b""}),
        tensor_value(array=ref(99)),
        tensor_value(strides=[-1]),
        tensor_value(strides=[10**9]),
        tensor_value(strides=[node("int", hex(1 << 70))]),
        tensor_value(strides=["1"]),
        tensor_value(strides=[1, 1]),
        tensor_value(strides=None),
        tensor_value(layout="torch.sparse_coo", size=[2], coalesced=False, parts=[]),
        tensor_value(layout="torch.sparse_coo", size=[-2], coalesced=True, parts=[1, 2]),
        tensor_value(layout="torch.jagged", size=[2], parts=[]),
        tensor_value(meta=["float32", [-5]]),
        tensor_value(meta=["float32", "x"]),
        tensor_value(half=5),
        node("torch", ["device", "nowhere:99999999999"]),
        node("torch", ["size", ["x"]]),
        node("torch", []),
        node("torch", 5),
        node("rng", {"kind": "torch", "device": "nowhere", "state": None}),
        node("rng", {"kind": "python", "state": [1]}),
        node("rng", {"kind": "os", "state": None}),
        node("rng", {"kind": "numpy", "state": {"bits": MT, "seeds": None}}),
        node("rng", {"kind": "numpy", "state": {"bits": {"bit_generator": "eval"}, "seeds": None}}),
        node("objects", None),
        node("objects", []),
        node("objects", ["eval", "1"]),
        node("objects", ["ZoneInfo", "../../etc/passwd"]),
        node("objects", ["ZoneInfo", "America"]),
        node("objects", ["ZoneInfo", "x" * 100_000]),
        node("objects", ["Fraction", [1, 0]]),
        node(
            "objects",
            ["Fraction", [node("int", "0x" + "f" * 2 * MEBI), node("int", "0x" + "7" * 2 * MEBI)]],
        ),
        node("objects", ["Decimal", [0, ["x"], 0]]),
        node("objects", ["date", node("int", hex(1 << 70))]),
        node("objects", ["datetime", [1, 2], None]),
        node("objects", ["datetime", [2000, 1, 1, 0, 0, 0, 0, 0], 5]),
        node("objects", ["slice", [1]]),
        node("objects", ["bytearray", 1 << 40]),
        node("objects", ["range", ["a"]]),
        node("objects", ["UUID", b"1"]),
        node("objects", ["complex", [[], []]]),
        node("objects", ["PosixPath", [1]]),
        node("int", "no number"),
        node("int", 5),
        node("tuple", 5),
        node("set", [[1]]),
        node("set", [KEY]),
        node("dict", [[KEY, 1]]),
        node("dict", [[1]]),
        node("dict", [[node("str", ref(0)), 1]]),
        node("dict", [[node("tuple", [node("str", ref(0))]), 1]]),
        node("Counter", [[1, 2, 3]]),
        node("OrderedDict", {"items": [], "attributes": 5}),
        node("defaultdict", {"factory": "eval", "items": []}),
        node("defaultdict", {"factory": ["list"], "items": []}),
        node("deque", {"items": [], "maxlen": -1}),
        node("deque", {"items": [], "maxlen": "x"}),
        node("stateful", None),
        node("dataclass", {"class": ["argparse"], "fields": []}),
        node("namespace", {"class": ["argparse", "Namespace"], "fields": [["__class__", 5]]}),
        node("namespace", {"class": ["argparse", "Namespace"], "fields": [[5, 5]]}),
        node("namespace", {"class": ["argparse", "Namespace"], "fields": 7}),
        node("namedtuple", {"class": ["sched", "Event"], "fields": [["time", 1]]}),
        {"$": "tuple"},
        {"$": "tuple", "v": [], "w": 1},
        {"$": 5, "v": []},
        {"$": "", "v": -1},
        {"$": "", "v": "x"},
    ]
):
    cases(RESTORES, **{f"value_{i}": in_state(value)})


def check(name: str, outcome: dict[str, Any], *, refused: bool) -> None:
    """Check what one call of one case did."""
    assert outcome["touched"] == [], (name, outcome)
    assert outcome["error"] is None or outcome["ours"], (name, outcome)
    assert outcome["cpu_s"] < MAX_CPU_S and outcome["wall_s"] < MAX_WALL_S, (name, outcome)
    assert outcome["nbytes"] < MAX_NBYTES, (name, outcome)
    assert len(outcome["message"]) < 1000, (name, outcome)
    bad = outcome["error"] is not None or outcome["ok"] is False
    assert bad or not refused, (name, outcome)


@pytest.fixture(scope="module")
def outcomes(
    children: Children, saved: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, dict[str, Any]]]:
    """What each call did with each case: forged, then read by a child; by another if one dies."""
    base = tmp_path_factory.mktemp("forged")
    before = {}
    for name, (forge, _) in CASES.items():
        (base / name).mkdir()
        shutil.copytree(saved / "run", base / name / "run")
        forge(base / name / "run" / NAME)
        before[name] = listing(base / name)
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in CASES}
    left = list(CASES)
    while left:
        places = [str(base / name / "run") for name in left]
        answer = children.ask("read", warm=str(saved / "warm"), places=places, limit_s=200)
        for place, call, outcome in answer["said"]:
            found[Path(place).parent.name][call] = outcome
        done = [name for name in left if len(found[name]) == 5]
        left = [name for name in left if name not in done][answer["end"] != 0 :]
    for name in CASES:
        found[name]["left_alone"] = {"ok": listing(base / name) == before[name]}
    return found


CALLS = {"steps", "info", "verify", "restore", "restore_into"}


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_checkpoint_is_refused_at_once_and_runs_nothing(
    outcomes: dict[str, dict[str, dict[str, Any]]], name: str
) -> None:
    found, (_, refused) = outcomes[name], CASES[name]
    assert found.pop("left_alone")["ok"]
    assert set(found) == CALLS, f"killed the reader, or hung, after {list(found)}"
    for call, outcome in found.items():
        check(call, outcome, refused=call in refused)


def test_the_guard_sees_code_that_runs(children: Children, base: Path) -> None:
    in_state(node("objects", ["pickle", pickle.dumps(Bomb())]))(base / "run" / NAME)
    places = {"warm": str(base / "warm"), "places": [str(base / "run")]}
    for _, call, outcome in children.ask("read", trust=True, **places)["said"]:
        touched = " ".join(outcome["touched"])
        assert ("pickle.find_class" in touched and "os.system" in touched) == (call in RESTORES)
