"""The layout `packed`: the image itself in one file, `.datastates/image.0`.

A step of any number of arrays is one file to make, to write and to sync. Segments go to the disk
as they lie in the arena, one write each. The index of a shard lies in the segment of its last
chunk, where the plan has left room: so the data of each array is one range of the image, the same
bytes that would be its file in the layout `tree`. Which range it is, the manifest says; from it
`datastates://` and `datastates export --reference` show the step to Zarr.

The directory is a Zarr group without members: whoever opens it as files finds nothing rather than
arrays of zeros.
"""

from __future__ import annotations

import os

import numpy as np

from datastates.manifest import Array
from datastates.plan import Segment, data_nbytes
from datastates.provider import Bytes

from .posix import preallocate, translated
from .zarr_metadata import PACKED, RESERVED, is_sharded, shard_index
from .zarr_reader import ZarrReader
from .zarr_writer import ZarrWriter

IMAGE = (RESERVED, "image.0")
"""The file that holds the image of rank 0."""


class PackedWriter(ZarrWriter):
    """Writes a step as one image."""

    layout = PACKED

    def _prepare(self) -> None:
        self._image = self._at("/".join(IMAGE))
        self._make_group(RESERVED)
        fd = os.open(self._image, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        try:
            if self._nbytes:
                preallocate(fd, self._nbytes)
        finally:
            os.close(fd)

    def write(self, segment: Segment, data: Bytes) -> None:
        """See `StepWriter.write`."""
        self._lease.touch()
        for extent in segment.extents:
            if extent.index == self._grids[extent.array].count - 1:
                self._put_index(extent.array, data, segment.offset)
        with translated("write", self._image, self._nbytes):
            self._files.write(self._image, data, segment.offset, segment.nbytes, whole=False)

    def _put_index(self, i: int, data: Bytes, offset: int) -> None:
        """Put the index behind the last chunk of a shard; `data` is the image from `offset` on."""
        grid = self._grids[i]
        if is_sharded(grid):
            index = shard_index(grid)
            stop = self._arrays[i].offset + data_nbytes(grid) - offset
            data[stop - len(index) : stop] = np.frombuffer(index, np.uint8)

    def _settle(self) -> list[str]:
        return ["/".join(IMAGE)]


class PackedReader(ZarrReader):
    """Reads a step that lies as one image."""

    _shared = True

    def _data(self, array: Array) -> tuple[tuple[str, ...], int]:
        return IMAGE, array.offset
