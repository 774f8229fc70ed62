"""The part of `TierTests` that is about reading what was committed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from datastates.errors import CorruptError
from datastates.tier import Tier

from .samples import sample_step
from .tier_base import TierSuite, reads_right

__all__ = ["ReadingTests"]


class ReadingTests(TierSuite):
    """Extents come back whole, in part, to several threads, and never made up."""

    def test_the_head_of_an_extent_can_be_read(self, tier: Tier, eyes: Tier) -> None:
        """`out` may be shorter than the extent."""
        step = sample_step()
        with eyes.open(step.put(tier, 1)) as reader:
            for extent in step.extents():
                for nbytes in {1, extent.nbytes // 2, extent.nbytes - 4}:
                    out = np.empty(nbytes, np.uint8)
                    reader.read(extent, out)
                    assert out.tobytes() == step.data(extent)[:nbytes].tobytes()

    def test_several_threads_read_at_once(self, tier: Tier, eyes: Tier) -> None:
        """From one reader, each into memory of its own."""
        step = sample_step(limit_nbytes=16 << 10)
        barrier = threading.Barrier(4)
        with eyes.open(step.put(tier, 1)) as reader, ThreadPoolExecutor(4) as pool:

            def read_all() -> list[bytes]:
                barrier.wait(30)
                found = []
                for extent in step.extents():
                    out = np.empty(extent.nbytes, np.uint8)
                    reader.read(extent, out)
                    found.append(out.tobytes())
                return found

            results = [pool.submit(read_all) for _ in range(4)]
            expected = [step.data(extent).tobytes() for extent in step.extents()]
            assert all(result.result(60) == expected for result in results)

    def test_an_extent_that_is_not_there_is_an_error(self, tier: Tier, eyes: Tier) -> None:
        """Beyond the last chunk there is nothing, and no byte is made up."""
        step = sample_step()
        last = max(step.extents(), key=lambda extent: (extent.array == 0, extent.index))
        beyond = replace(last, index=last.index + 50, offset=step.plan.nbytes + (1 << 20))
        with eyes.open(step.put(tier, 1)) as reader, pytest.raises(CorruptError):
            reader.read(beyond, np.empty(last.nbytes, np.uint8))

    def test_a_damaged_byte_is_not_hidden(self, tier: Tier, place: Path) -> None:
        """A tier may notice damage, or hand it on to the checksum: never what it remembers."""
        step = sample_step()
        entry = step.put(tier, 1)
        for index, array in enumerate(step.plan.arrays):
            mine = [extent for extent in step.extents() if extent.array == index]
            if not mine:
                continue
            self.spoil(place, entry, array)
            with tier.open(entry) as reader:
                assert not all(reads_right(reader, extent, step) for extent in mine)
