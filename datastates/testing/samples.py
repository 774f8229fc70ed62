"""Small steps with every shape an image can have, made without a checkpointer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from datastates.grid import PAGE
from datastates.manifest import Manifest
from datastates.memory import allocate
from datastates.names import Path
from datastates.plan import Extent, Plan, Segment, make_plan
from datastates.provider import ArrayLeaf, Bytes, Memory
from datastates.snapshot import Image
from datastates.sources import ArraySource
from datastates.tier import Entry, Record, Tier

__all__ = ["SampleStep", "sample_step"]


@dataclass(frozen=True, slots=True, eq=False)
class SampleStep:
    """A step that is ready to be written, and what must be read back."""

    plan: Plan
    manifest: Manifest
    image: Bytes
    """All bytes, page-aligned, as they come out of an arena."""

    def data(self, part: Segment | Extent) -> Bytes:
        """Return the bytes of a segment or an extent."""
        return self.image[part.offset : part.offset + part.nbytes]

    def extents(self) -> list[Extent]:
        """Return all extents, in the order of the image."""
        return [extent for segment in self.plan.segments for extent in segment.extents]

    def record(self, step: int, **metrics: float) -> Record:
        """Return a commit record for it."""
        return Record(step, self.plan.payload, "2026-01-01T00:00:00+00:00", metrics)

    def put(self, tier: Tier, step: int) -> Entry:
        """Write it into a tier as `step`, from begin to commit."""
        writer = tier.begin(step, self.plan)
        for segment in self.plan.segments:
            writer.write(segment, self.data(segment))
        writer.seal(self.manifest)
        return writer.commit(self.record(step))


def _leaf(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> ArrayLeaf:
    start = array.__array_interface__["data"][0]
    strides = tuple(stride // array.itemsize for stride in array.strides)
    memory = Memory("sample", start, start + array.nbytes, strides, dense=True)
    return ArrayLeaf(array.dtype.name, array.shape, ArraySource(array), memory)


def sample_step(seed: int = 0, limit_nbytes: int = 128 << 10) -> SampleStep:
    """Return a step of random values, other ones and other shapes for each seed.

    It has an array of several chunks with a padded last one, one chunk long enough for direct
    I/O, small ones that share a page, a slice of another array, a scalar and an empty array.

    Args:
        seed: makes the values.
        limit_nbytes: largest chunk; the image is about three times as long.
    """
    random = np.random.default_rng(seed)
    vector = random.random(10 + seed)
    arrays: dict[Path, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {
        ("model", "weight"): random.random((37 + seed, limit_nbytes // 128), np.float32),
        ("model", "bias"): vector,
        ("model", "part of bias"): vector[2:5],
        ("model", "scale"): np.array(random.random()),
        ("model", "nothing"): np.empty((0, 3), np.int64),
        ("optim", "state", 0, "mask"): random.random((3, 5)) < 0.5,
        ("bytes",): random.integers(0, 256, limit_nbytes * 3 // 4 + seed, np.uint8),
    }
    leaves = [_leaf(array) for array in arrays.values()]
    plan = make_plan([*zip(arrays, leaves, strict=True)], 4 * (limit_nbytes + 2 * PAGE))
    image = Image(plan, leaves)
    memory = allocate(plan.nbytes)
    for segment in plan.segments:
        image.fill(segment, memory[segment.offset : segment.offset + segment.nbytes])
    return SampleStep(
        plan, Manifest(plan.arrays, image.checksums(), {"seed": seed}, plan.nbytes), memory
    )
