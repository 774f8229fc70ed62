"""For those who write a tier or a provider: suites, tiers that misbehave, a device to test with.

The suites `TierTests` and `ProviderTests` are subclassed in a test module of yours; they need
pytest and hypothesis (`pip install "datastates[testing]"`). The wrappers need nothing: each
changes one thing about the tier inside it, so that you can see what your code makes of it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from .counting import CountingTier
from .fake_array import FakeArray, FakeProvider
from .fake_device import FakeDevice, FakeEvent, FakePins, FakeStream
from .faulty import Fault, FaultyTier, cut, flip
from .gated import GatedTier
from .samples import SampleStep, sample_step
from .slow import SlowTier
from .wrapper import WrapperTier

if TYPE_CHECKING:
    from .provider_tests import ProviderTests
    from .tier_machine import TierMachine
    from .tier_tests import TierTests

__all__ = [
    "CountingTier",
    "FakeArray",
    "FakeDevice",
    "FakeEvent",
    "FakePins",
    "FakeProvider",
    "FakeStream",
    "Fault",
    "FaultyTier",
    "GatedTier",
    "ProviderTests",
    "SampleStep",
    "SlowTier",
    "TierMachine",
    "TierTests",
    "WrapperTier",
    "cut",
    "flip",
    "sample_step",
]

_SUITES = {
    "ProviderTests": "provider_tests",
    "TierMachine": "tier_machine",
    "TierTests": "tier_tests",
}


def __getattr__(name: str) -> object:
    """Import a suite when it is asked for: pytest and hypothesis are no dependencies of ours."""
    if name not in _SUITES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest

    for module in ("tier_base", "tier_reading", *_SUITES.values()):
        if f"{__name__}.{module}" not in sys.modules:
            pytest.register_assert_rewrite(f"{__name__}.{module}")
    return getattr(import_module(f"{__name__}.{_SUITES[name]}"), name)
