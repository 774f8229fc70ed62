"""Hostile steps: values that name code, and values that no provider can make anything of."""

import os
import pickle
import random
from pathlib import Path
from typing import Any

import msgpack
from forging import (
    INFO,
    RESTORES,
    Cases,
    Forge,
    data_file,
    forge_manifest,
    in_state,
    node,
    ref,
    write_manifest,
)

CASES = Cases()

# Code: pickles, classes, imports.


class Bomb:
    """Its pickle would run a command."""

    def __reduce__(self) -> Any:
        return os.system, ("true",)


def class_case(provider: str, module: str, name: str) -> Forge:
    named = [module, name]
    data = {"class": named, "fields": [["args", ["true"]]]}
    return in_state(
        node("objects", ["enum", named, "x", None]) if provider == "enum" else node(provider, data)
    )


CASES.add(
    RESTORES,
    pickled_value=in_state(node("objects", ["pickle", pickle.dumps(Bomb())])),
    pickle_as_manifest=lambda step: write_manifest(step, pickle.dumps(Bomb())),
    pickle_as_chunk=lambda step: data_file(step).write_bytes(pickle.dumps(Bomb())),
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
CASES.add(
    INFO, pickle_as_record=lambda step: (step / "zarr.json").write_bytes(pickle.dumps(Bomb()))
)


# Values that a provider cannot make anything of.


def numpy_value(**fields: Any) -> Any:
    return node("numpy", {"dtype": ["descr", "<f8"], "array": ref(0), "order": "C"} | fields)


def tensor_value(**fields: Any) -> Any:
    return node("tensor", {"parameter": False, "grad": False, "array": ref(0)} | fields)


MEBI = 1 << 20
KEY = [1, 2, 3]
WIDE = [node("int", hex(random.Random(seed).getrandbits(8 * MEBI) | 1)) for seed in range(2)]


def generator(kind: str, seeds: Any = None, **fields: Any) -> Any:
    """Return a generator of numpy's with a state that it would take."""
    place = (
        {"key": [1] * 624, "pos": 0} if kind == "MT19937" else {"counter": [0] * 4, "key": [0] * 2}
    )
    bits = {"bit_generator": kind, "state": place, "buffer": [0] * 4, "buffer_pos": 0}
    bits |= {"has_uint32": 0, "uinteger": 0} | fields
    return node("rng", {"kind": "numpy", "state": {"bits": bits, "seeds": seeds}})


def seeds(**fields: Any) -> Any:
    """Return a seed sequence's state."""
    return {"entropy": 1, "spawn_key": [], "pool_size": 4, "n_children_spawned": 0} | fields


CASES.add_each(
    RESTORES,
    "value",
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
        node("numpy_value", {"dtype": ["descr", "<f8"], "scalar": 1 << 34}),
        node("numpy_value", {"dtype": ["descr", "|V8"], "text": 1 << 34}),
        node("numpy_value", {"dtype": ["descr", "<U8"], "text": b"x"}),
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
        generator("eval"),
        generator("MT19937", state={"key": [1] * 624, "pos": MEBI}),
        generator("MT19937", state={"key": [1] * 624, "pos": -1}),
        generator("MT19937", state={"key": [1], "pos": 0}),
        generator("Philox", buffer_pos=-MEBI),
        generator("Philox", buffer_pos=5),
        generator("Philox", seeds=seeds(pool_size=1 << 30)),
        generator("Philox", seeds=seeds(entropy=WIDE[0])),
        generator("Philox", seeds=seeds(spawn_key=[WIDE[0]])),
        generator("Philox", seeds=seeds(eval="1")),
        node("objects", None),
        node("objects", []),
        node("objects", ["eval", "1"]),
        node("objects", ["ZoneInfo", "../../etc/passwd"]),
        node("objects", ["ZoneInfo", "America"]),
        node("objects", ["ZoneInfo", "x" * 100_000]),
        node("objects", ["Fraction", [1, 0]]),
        node("objects", ["Fraction", WIDE]),
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
        node("namespace", {"class": ["argparse", "Namespace"], "fields": [[5, 5]]}),
        node("namespace", {"class": ["argparse", "Namespace"], "fields": 7}),
        node("namedtuple", {"class": ["sched", "Event"], "fields": [["time", 1]]}),
        {"$": "tuple"},
        {"$": "tuple", "v": [], "w": 1},
        {"$": 5, "v": []},
        {"$": "", "v": -1},
        {"$": "", "v": "x"},
    ],
    in_state,
)


def global_generator(step: Path) -> None:
    """Numpy's own generator would read beyond its buffer; refused where it is set."""

    def change(content: dict[str, Any]) -> None:
        skeleton = msgpack.unpackb(content["skeleton"])
        skeleton["rng"]["v"]["state"]["numpy"]["v"][2] = 1 << 28
        content["skeleton"] = msgpack.packb(skeleton)

    forge_manifest(step, change)


CASES.add(frozenset({"restore_into"}), global_generator=global_generator)
CASES.add(
    frozenset(),
    class_of_an_object=in_state(
        node("namespace", {"class": ["argparse", "Namespace"], "fields": [["__class__", "x"]]})
    ),
)
