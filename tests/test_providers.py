"""Every registered provider keeps the contract; exactness has modules of its own."""

import datetime as dt
import decimal
import enum
import fractions
import pathlib
import random
import uuid
import zoneinfo
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import support
import torch

import datastates as ds
from datastates.provider import Provider
from datastates.registry import PROVIDERS, load, names
from datastates.testing import ProviderTests


class Suite(ProviderTests):
    """By the name among the entry points, with an equality that sees every bit."""

    registered = ""

    def make(self) -> Provider:
        return load(PROVIDERS, self.registered)()

    def same(self, one: Any, other: Any) -> bool:
        return support.same(one, other)


class Colour(enum.Enum):
    RED = 1


class Bits(enum.Flag):
    A = 1
    B = 2


def tensors() -> list[torch.Tensor]:
    torch.manual_seed(5)
    dense = torch.randn(6, 4)
    return [
        dense,
        dense.t(),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.tensor(3.5),
        torch.empty(0, 4),
        torch.arange(20, dtype=torch.int64),
        torch.randn(7).bfloat16(),
        torch.randn(9).to(torch.float8_e4m3fn),
        torch.randn(5, dtype=torch.complex64).conj(),
        torch.nn.Parameter(torch.randn(3)),
        torch.randn(4, 4).to_sparse(),
        torch.randn(4, 4).to_sparse_csr(),
        torch.empty(3, 2, device="meta"),
    ]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
class TestTensor(Suite):
    registered = "tensor"

    def values(self) -> Sequence[Any]:
        return tensors()

    def targets(self) -> Sequence[tuple[Any, Any]]:
        plain = [t for t in tensors() if t.layout is torch.strided and not t.is_meta]
        plain = [t for t in plain if not t.is_conj() and type(t) is torch.Tensor]
        return [(t, t.detach().clone().zero_().requires_grad_(t.requires_grad)) for t in plain]

    def refused(self) -> Sequence[Any]:
        return [torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])]


class TestTorch(Suite):
    registered = "torch"

    def values(self) -> Sequence[Any]:
        return [torch.Size([1, 2]), torch.float8_e5m2, torch.device("cuda:1"), torch.strided]


class TestNumpy(Suite):
    registered = "numpy"

    def values(self) -> Sequence[Any]:
        made = np.random.default_rng(3).random((5, 4))
        return [
            made,
            np.asfortranarray(made),
            made[::2],
            made.astype(">f4"),
            np.array(["2020-01-01", "NaT"], "M8[D]"),
            np.array(["a", "ß"]),
            np.zeros(3, [("x", "<i4"), ("y", "<f8", (2,))]),
            np.empty((0, 2), np.int8),
        ]

    def targets(self) -> Sequence[tuple[Any, Any]]:
        return [(a, np.zeros_like(a)) for a in self.values() if a.dtype.isnative]

    def refused(self) -> Sequence[Any]:
        return [np.array([object()])]


class TestNumpyValue(Suite):
    registered = "numpy_value"

    def values(self) -> Sequence[Any]:
        return [np.float32(1.5), np.int64(-3), np.datetime64("2020-01-01"), np.dtype(">i2")]


class TestObjects(Suite):
    registered = "objects"

    def values(self) -> Sequence[Any]:
        zone = zoneinfo.ZoneInfo("Europe/Berlin")
        return [
            *(complex(0.0, -0.0), bytearray(b"xy"), range(1, 9, 2), slice(1, None, "x")),
            *(
                dt.date(2020, 2, 29),
                dt.timedelta(-1, 5, 7),
                dt.timezone(dt.timedelta(hours=2), "x"),
            ),
            *(dt.datetime(2020, 1, 1, tzinfo=zone), dt.time(1, 2, 3, 4, fold=1), zone),
            *(decimal.Decimal("-0.10"), fractions.Fraction(1, 3), uuid.UUID(int=5)),
            *(pathlib.PurePosixPath("/a/b"), pathlib.PureWindowsPath("c:\\x"), ...),
            *(NotImplemented, Colour.RED, Bits.A | Bits.B),
        ]

    def refused(self) -> Sequence[Any]:
        return [ds.Pickled(lambda: None)]


class TestRNG(Suite):
    registered = "rng"

    def values(self) -> Sequence[Any]:
        return [random.Random(1), np.random.default_rng(2), torch.Generator().manual_seed(3)]

    def targets(self) -> Sequence[tuple[Any, Any]]:
        others = random.Random(4), np.random.default_rng(5), torch.Generator().manual_seed(6)
        return [*zip(self.values(), others, strict=True)]

    def same(self, one: Any, other: Any) -> bool:
        return type(one) is type(other) and support.same(self._state(one), self._state(other))

    @staticmethod
    def _state(generator: Any) -> Any:
        if isinstance(generator, torch.Generator):
            return generator.get_state()
        if isinstance(generator, random.Random):
            return generator.getstate()
        return generator.bit_generator.state


class TestStateful(Suite):
    registered = "stateful"

    def values(self) -> Sequence[Any]:
        torch.manual_seed(1)
        return [torch.nn.Linear(4, 3)]

    def targets(self) -> Sequence[tuple[Any, Any]]:
        torch.manual_seed(1)
        return [(torch.nn.Linear(4, 3), torch.nn.Linear(4, 3))]

    def same(self, one: Any, other: Any) -> bool:
        """Without a target a state dict comes back."""
        one, other = (getattr(x, "state_dict", lambda x=x: x)() for x in (one, other))
        return support.same(dict(one), dict(other))


SUITES = {suite.registered: suite for suite in Suite.__subclasses__()}


def test_every_registered_provider_has_a_suite() -> None:
    assert sorted(SUITES) == names(PROVIDERS)


def test_every_provider_is_registered_under_the_name_that_it_writes() -> None:
    assert [load(PROVIDERS, name).name for name in names(PROVIDERS)] == names(PROVIDERS)
