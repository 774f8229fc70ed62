"""Whatever happens to a checkpoint's bytes, reading it gives the exact state or an error of ours.

Three ways to break one: any file damaged as disks and people do it; a manifest changed at random
with its checksum made right again, so that the parser and the providers see it; and the commit
record. The first must never give another state. The others say what the state is, so there any
state will do: but no other exception, no hang and no crash.
"""

import copy
import datetime
import json
import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from forging import MANIFEST, STEP, write_manifest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import same

import datastates as ds

FUZZ = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def state() -> dict[str, Any]:
    """A small state of many kinds."""
    shared = torch.arange(12.0).reshape(3, 4)
    return {
        "model": OrderedDict(w=shared, tied=shared, row=shared[1], t=torch.ones(4, 3).T),
        "half": torch.arange(5).to(torch.bfloat16),
        "one": torch.tensor(7),
        "sparse": torch.eye(3).to_sparse(),
        "array": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "dates": np.array(["2020-01-01", "NaT"], "M8[D]"),
        "scalar": np.float32(1.5),
        "rng": np.random.default_rng(1),
        "long": [0] * 5000,
        "text": "x" * 70_000,
        "plain": [1, 2.5, None, "text", b"bytes", -(1 << 70)],
        "kinds": (
            {1: "a", (2, "b"): deque([1], 3)},
            defaultdict(list, a=[1]),
            {1, "a"},
            complex(1, 2),
            datetime.datetime(2020, 1, 2, 3, tzinfo=datetime.UTC),
            slice(1, None, 2),
        ),
    }


@pytest.fixture(scope="module", params=["tree", "packed"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the state as step 1."""
    made = tmp_path_factory.mktemp("fuzz") / "run"
    with ds.Checkpointer(made, arena_nbytes=8 << 20, layout=request.param) as ckpt:
        ckpt.save(state(), step=1, metrics={"loss": 1.5}, metadata={"note": ["x", {"y": 1}]})
    return made


@pytest.fixture(scope="module")
def ckpt(root: Path) -> Iterator[ds.Checkpointer]:
    with ds.Checkpointer(root) as made:
        yield made


def ours(call: Callable[[], Any]) -> Any:
    """Return what a call returned, or the error where it is one of ours."""
    try:
        return call()
    except ds.DatastatesError as error:
        return error


def restored(ckpt: ds.Checkpointer) -> Iterator[dict[str, Any]]:
    """Yield the states that come back, with a target and without."""
    for target in (None, state()):
        found = ours(lambda target=target: ckpt.restore(target, step=1))
        if not isinstance(found, ds.DatastatesError):
            yield found


def comparable(found: dict[str, Any]) -> dict[str, Any]:
    """Put a generator's state in its place: generators themselves are never equal."""
    return found | {"rng": found["rng"].bit_generator.state}


def damages(content: bytes, chance: random.Random, count: int) -> Iterator[bytes]:
    """Yield damaged versions: a bit flipped, cut, grown, a piece lost, doubled, moved or zeroed."""
    places = (
        range(len(content)) if len(content) <= count else chance.sample(range(len(content)), count)
    )
    for at in places:
        flipped = bytearray(content)
        flipped[at] ^= 1 << chance.randrange(8)
        yield bytes(flipped)
    yield from (b"", content[:-1], content[: len(content) // 2], content + b"\0", content * 2)
    first, stop = sorted(chance.choices(range(len(content) + 1), k=2))
    head, piece, tail = content[:first], content[first:stop], content[stop:]
    yield from (head + tail, head + piece * 2 + tail, tail + head, head + bytes(len(piece)) + tail)


@pytest.mark.slow
def test_damage_in_any_file_gives_the_exact_state_or_an_error(
    root: Path, ckpt: ds.Checkpointer
) -> None:
    """And `verify` sees it, where it is in what a restore reads."""
    chance, exact, seen = random.Random(1), comparable(state()), 0
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        content, ours_to_read = path.read_bytes(), path.name.startswith("c.")
        for damaged in damages(content, chance, 10 if ours_to_read else 1):
            path.write_bytes(damaged)
            seen += 1
            found = ours(lambda: ckpt.restore(step=1))
            assert isinstance(found, ds.DatastatesError) or same(exact, comparable(found)), path
            report = ours(lambda: ckpt.verify(1))
            noticed = isinstance(report, ds.CorruptError) or not report.ok
            assert noticed or not ours_to_read or damaged == content, path
        path.write_bytes(content)
    assert same(exact, comparable(ckpt.restore(step=1))) and ckpt.verify(1).ok
    assert seen > (250 if (root / STEP / "model").exists() else 50)


# The manifest, with its checksum made right again.


@pytest.fixture(scope="module")
def manifest(root: Path) -> bytes:
    return (root / STEP / MANIFEST).read_bytes()[:-4]


def try_manifest(root: Path, ckpt: ds.Checkpointer, packed: bytes) -> None:
    right = (root / STEP / MANIFEST).read_bytes()
    write_manifest(root / STEP, packed)
    try:
        list(restored(ckpt))
        ours(lambda: ckpt.verify(1))
    finally:
        (root / STEP / MANIFEST).write_bytes(right)


@settings(FUZZ, max_examples=400)
@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 4))
def test_a_manifest_of_changed_bytes_does_no_harm(
    root: Path, ckpt: ds.Checkpointer, manifest: bytes, seed: int, count: int
) -> None:
    chance, changed = random.Random(seed), manifest
    for _ in range(count):
        changed = chance.choice(list(damages(changed, chance, 8)))
    try_manifest(root, ckpt, changed)


PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.sampled_from([0, 1, -1, 2, 1 << 31, 1 << 62, (1 << 63) - 1])
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["$", "v", "float32", "uint8", "model/w", "..", "numpy", "tensor", "objects"])
    | st.binary(max_size=9)
)
PROVIDERS = st.sampled_from(
    [
        *("", "int", "numpy", "numpy_value", "tensor", "torch", "objects", "rng", "stateful"),
        *("dict", "OrderedDict", "Counter", "defaultdict", "tuple", "set", "deque"),
        *("dataclass", "namedtuple", "namespace", "bytes", "str", "packed"),
    ]
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["$", "v"]), inner, max_size=3)
        | st.builds(lambda name, data: {"$": name, "v": data}, PROVIDERS, inner)
    ),
    max_leaves=6,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return each container in a document with each of its keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, inner in list(items):
        found.append((value, key))
        if isinstance(inner, dict | list):
            found += places(inner)
    return found


def change(document: Any, data: st.DataObject) -> None:
    """Put something else into one place, or move, double or remove what is there."""
    container, key = data.draw(st.sampled_from(places(document)))
    other, from_key = data.draw(st.sampled_from(places(document)))
    act = data.draw(st.sampled_from(["put", "put", "move", "remove", "double"]))
    if act == "put":
        container[key] = data.draw(VALUES)
    elif act == "move":
        container[key] = copy.deepcopy(other[from_key])
    elif act == "remove":
        del container[key]
    elif isinstance(container, list):
        container.insert(key, container[key])


@settings(FUZZ, max_examples=300)
@given(data=st.data(), count=st.integers(1, 3))
def test_a_manifest_of_changed_structure_does_no_harm(
    root: Path, ckpt: ds.Checkpointer, manifest: bytes, data: st.DataObject, count: int
) -> None:
    document = msgpack.unpackb(manifest)
    document["skeleton"] = msgpack.unpackb(document["skeleton"])
    for _ in range(count):
        change(document, data)
    if "skeleton" in document:
        document["skeleton"] = msgpack.packb(document["skeleton"])
    try_manifest(root, ckpt, msgpack.packb(document))


@settings(FUZZ, max_examples=200)
@given(skeleton=VALUES)
def test_a_state_of_anything_does_no_harm(
    root: Path, ckpt: ds.Checkpointer, manifest: bytes, skeleton: Any
) -> None:
    document = msgpack.unpackb(manifest) | {"skeleton": msgpack.packb({"model": skeleton})}
    try_manifest(root, ckpt, msgpack.packb(document))


# The commit record.


def try_record(root: Path, ckpt: ds.Checkpointer, text: bytes) -> None:
    """Read a commit record, by a checkpointer that has not read it before."""
    path = root / STEP / "zarr.json"
    content = path.read_bytes()
    path.write_bytes(text)
    try:
        new = ds.Checkpointer(root)
        assert new.steps() == [1] and new.latest() == 1
        ours(lambda: new.info(1))
        ours(lambda: ckpt.verify(1))
    finally:
        path.write_bytes(content)


@settings(FUZZ, max_examples=120)
@given(seed=st.integers(0, 1 << 32))
def test_a_record_of_changed_bytes_does_no_harm(
    root: Path, ckpt: ds.Checkpointer, seed: int
) -> None:
    chance, text = random.Random(seed), (root / STEP / "zarr.json").read_bytes()
    try_record(root, ckpt, chance.choice(list(damages(text, chance, 20))))


@settings(FUZZ, max_examples=120)
@given(data=st.data())
def test_a_record_of_changed_structure_does_no_harm(
    root: Path, ckpt: ds.Checkpointer, data: st.DataObject
) -> None:
    document = json.loads((root / STEP / "zarr.json").read_bytes())
    change(document["attributes"], data)
    try_record(root, ckpt, json.dumps(document, default=repr).encode())
