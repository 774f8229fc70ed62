"""Every registered tier keeps the contract; what is special about one is in its own module."""

from pathlib import Path

import numpy as np
import pytest

from datastates.manifest import Array
from datastates.registry import TIERS, load, names
from datastates.testing import CountingTier, TierTests, WrapperTier
from datastates.tier import DurableTier, Entry, Tier
from datastates.tiers.memory import MemoryTier
from datastates.tiers.zarr import ZarrTier


class TestMemory(TierTests):
    def make(self, place: Path) -> Tier:
        return MemoryTier(str(place))


class TestZarr(TierTests):
    fsync = True
    direct = True
    layout = "tree"

    def make(self, place: Path) -> Tier:
        return ZarrTier(str(place), fsync=self.fsync, direct=self.direct, layout=self.layout)

    def left(self, place: Path) -> list[str]:
        return sorted(str(path.relative_to(place)) for path in place.rglob("*"))

    def spoil(self, place: Path, entry: Entry, array: Array) -> None:
        (step,) = place.glob(f"step-*{entry.step}")
        (file,) = (step / array.node).glob("c*")
        data = np.fromfile(file, np.uint8)
        data[len(data) // 3] ^= 1
        data.tofile(file)


class TestZarrPacked(TestZarr):
    layout = "packed"

    def spoil(self, place: Path, entry: Entry, array: Array) -> None:
        (step,) = place.glob(f"step-*{entry.step}")
        data = np.fromfile(step / ".datastates/image.0", np.uint8)
        data[array.offset + array.grid.chunk_nbytes // 3] ^= 1
        data.tofile(step / ".datastates/image.0")


@pytest.mark.extended
class TestZarrPackedThroughThePageCache(TestZarrPacked):
    direct = False


class TestZarrWithoutFsync(TestZarr):
    fsync = False


@pytest.mark.extended
class TestZarrThroughThePageCache(TestZarr):
    direct = False


class TestWrapped(TestZarr):
    """A wrapper that changes nothing is as good as what it wraps."""

    def make(self, place: Path) -> Tier:
        return CountingTier(WrapperTier(ZarrTier(str(place), fsync=False)))


SUITES = {"memory": TestMemory, "zarr": TestZarr}


def test_every_registered_tier_has_a_suite(tmp_path: Path) -> None:
    assert sorted(SUITES) == names(TIERS)
    for name, suite in SUITES.items():
        tier = suite().make(tmp_path / name)
        assert type(tier) is load(TIERS, name)
        assert tier.scheme == name


def test_only_what_outlives_the_process_calls_itself_durable() -> None:
    assert [name for name in names(TIERS) if issubclass(load(TIERS, name), DurableTier)] == ["zarr"]
