"""The ground under `TierTests`: what a subclass gives, and what the checks are made of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from datastates.errors import StorageError
from datastates.manifest import Array
from datastates.plan import Extent
from datastates.tier import Entry, StepReader, StepWriter, Tier

from .samples import SampleStep

__all__ = ["TierSuite", "assert_holds", "reads_right", "sealed"]


def sealed(tier: Tier, number: int, step: SampleStep) -> StepWriter:
    """Bring a step as far as its seal."""
    writer = tier.begin(number, step.plan)
    for segment in step.plan.segments:
        writer.write(segment, step.data(segment))
    writer.seal(step.manifest)
    return writer


def reads_right(reader: StepReader, extent: Extent, step: SampleStep) -> bool:
    """Tell whether an extent is given back as it was written, and without an error."""
    out = np.full(extent.nbytes, 0xAA, np.uint8)
    try:
        reader.read(extent, out)
    except StorageError:
        return False
    return out.tobytes() == step.data(extent).tobytes()


def assert_holds(tier: Tier, entry: Entry, step: SampleStep) -> None:
    """Check that a tier gives a step back, byte for byte."""
    with tier.open(entry) as reader:
        assert reader.manifest() == step.manifest
        for extent in step.extents():
            assert reads_right(reader, extent, step), f"{extent} came back wrong"


class TierSuite:
    """`make` is yours; `left` and `spoil` let the checks look behind the tier's back."""

    def make(self, place: Path) -> Tier:
        """Return a new tier object on `place`, a name that only this test uses.

        Objects on one place see the same steps. The path does not exist yet.
        """
        raise NotImplementedError

    def left(self, place: Path) -> list[str]:
        """Return the names of all that lies at `place`, found without the tier."""
        pytest.skip("this tier's suite does not look behind its back")

    def spoil(self, place: Path, entry: Entry, array: Array) -> None:
        """Change one stored byte of an array, without the tier."""
        pytest.skip("this tier's suite does not look behind its back")

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        """A place of this test's own."""
        return tmp_path / "place"

    @pytest.fixture
    def tier(self, place: Path) -> Iterator[Tier]:
        """The object under test."""
        made = self.make(place)
        yield made
        made.close()

    @pytest.fixture
    def eyes(self, place: Path) -> Iterator[Tier]:
        """Another object on the same place, to check with."""
        made = self.make(place)
        yield made
        made.close()

    def left_if_told(self, place: Path) -> list[str]:
        """As `left`; an empty list where the suite cannot look."""
        try:
            return self.left(place)
        except pytest.skip.Exception:
            return []
