"""The state in the golden checkpoints: the same on every machine and with every version.

A later format adds to it under new keys; what is here now must come back from format 1 for ever.
"""

import dataclasses
import datetime as dt
import enum
import random
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import torch

import datastates as ds

METRICS = {"loss": 2.5, "accuracy": 0.25}
METADATA = {"commit": "abc", "tags": ["golden", None, 1.5]}

DTYPES = (
    *("bool", "uint8", "int64", "uint16", "float16", "bfloat16", "float32", "complex64"),
    *("float8_e4m3fn", "float8_e5m2"),
)


class Phase(enum.Enum):
    WARMUP = "w"


class Point(NamedTuple):
    x: int
    y: Any


@dataclasses.dataclass
class Config:
    lr: float
    betas: tuple[float, float]


class Position:
    """Anything with the two methods."""

    def __init__(self, index: int = 0) -> None:
        self.index, self.seen = index, np.arange(index, dtype="u2")

    def state_dict(self) -> dict[str, Any]:
        return {"index": self.index, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.index, self.seen = state["index"], state["seen"]


def _bits(name: str) -> torch.Tensor:
    dtype = getattr(torch, name)
    raw = np.arange(96, dtype=np.uint8) * (1 if name == "bool" else 37)
    return torch.from_numpy(raw % 2 if name == "bool" else raw).view(dtype)


def _tensors() -> dict[str, Any]:
    weight = torch.arange(12.0).view(3, 4)
    return {
        **{name: _bits(name) for name in DTYPES},
        "sharded": torch.arange(20_000, dtype=torch.int32).view(4, 5_000),
        "last": torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "weight": weight,
        "tied": weight,
        "transposed": weight.t(),
        "scalar": torch.tensor(-0.0),
        "nan": torch.tensor(float("nan"), dtype=torch.bfloat16),
        "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(torch.tensor(1.5), requires_grad=False),
        "sparse": torch.tensor([[0.0, 2.0], [0.0, 0.0]]).to_sparse(),
        "half": torch.view_as_complex(torch.arange(4, dtype=torch.float16).view(2, 2)),
    }


def _numpy() -> dict[str, Any]:
    return {
        "dates": np.arange(3).astype("M8[s]"),
        "records": np.array([(1, 2.5)], [("a", ">i4"), ("b", "f8")]),
        "scalars": [np.float32(0.1), np.int64(-5), np.str_("ü"), np.datetime64("2024-02-29")],
        "dtypes": [np.dtype(">f8"), np.dtype("M8[ns]"), np.dtype([("a", "i4")])],
    }


def _objects() -> dict[str, Any]:
    zone = dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    return {
        "plain": [None, True, 0, -1, 2**64, -(2**70), 0.1, -0.0, 1e-320, "ü\ud800", b"\0\xff"],
        "containers": [{}, [], (), set(), frozenset({1}), deque([1], maxlen=2), Counter("aab")],
        "mappings": [OrderedDict(b=1, a=2), defaultdict(list, {1: [2]})],
        "keys": {0: "a", "0": "b", None: 1, True: 2, 1.5: 3, (1, "x"): 4, b"k": 5, "a/b": 6},
        "dollar": {"$": 1, "v": 2, "..": 3, "zarr.json": 4},
        "times": [dt.date(2024, 2, 29), zone, dt.timedelta(1, 2, 3), dt.time(1, tzinfo=dt.UTC)],
        "numbers": [1j, Decimal("1.10"), Fraction(1, 3), range(3), slice(1, None, 2), ...],
        "names": [PurePosixPath("a/b"), UUID(int=5), bytearray(b"x"), Phase.WARMUP],
        "classes": [Point(1, [2]), Config(0.1, (0.9, 0.99))],
        "torch": [torch.Size([2, 3]), torch.bfloat16, torch.device("cpu"), torch.sparse_coo],
        "long list": [*range(5_000), 2**80, "end"],
        "long text": "ß" * 40_000,
        "long tuple": tuple(range(5_000)),
        "long dict": {i: -i for i in range(4_500)},
    }


def state() -> dict[str, Any]:
    """Return the state that was saved."""
    hung_on = OrderedDict(w=1)
    hung_on._metadata = OrderedDict({"": {"version": 2}})  # type: ignore[attr-defined]
    return {
        "tensors": _tensors(),
        "numpy": _numpy(),
        "objects": _objects(),
        "state dict": hung_on,
        "position": Position(5),
        "pickled": ds.Pickled(Phase.WARMUP),
        "python rng": random.Random(1),
        "numpy rng": np.random.default_rng([1, 2]),
    }
