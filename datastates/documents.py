"""msgpack from anyone, read in bounded memory.

A few bytes of msgpack may claim lists of billions, nest a thousand lists that each claim as much,
or hold millions of empty dicts, which take seventy times their size in memory. So nothing is made
of a document before it was walked, which shows that all it claims is there; and then no more is
made of it than the caller allows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack

from .errors import FormatError

__all__ = ["Pieces", "unpack_bounded"]

Packed = bytes | bytearray | memoryview


class _File:
    """Bytes as a file, so that they are not copied as a whole."""

    def __init__(self, data: Packed) -> None:
        self._left = memoryview(data)

    def read(self, nbytes: int) -> bytes:
        """Return the next bytes."""
        piece, self._left = self._left[:nbytes], self._left[nbytes:]
        return bytes(piece)


class Pieces:
    """Takes a document apart from its start, one value at a time.

    What `msgpack` raises comes out as it is: ValueError, TypeError or UnpackException.
    """

    def __init__(self, packed: Packed) -> None:
        self._packed = memoryview(packed)
        self._walk = msgpack.Unpacker(_File(packed), read_size=1 << 16)

    def pairs(self, limit: int) -> range:
        """Enter a map of at most `limit` pairs; its keys and values are the next values."""
        return self._some(self._walk.read_map_header(), limit)

    def items(self, limit: int) -> range:
        """Enter a list of at most `limit` items, which are the next values."""
        return self._some(self._walk.read_array_header(), limit)

    @staticmethod
    def _some(count: int, limit: int) -> range:
        if count > limit:
            raise FormatError(f"a list of {count} is over {limit}")
        return range(count)

    def record(self, limit: int) -> Any:
        """Return the next value, of at most `limit` bytes, which may hold others."""
        return msgpack.unpackb(self._next(limit))

    def scalar(self, limit: int) -> Any:
        """Return the next value, of at most `limit` bytes, which must not hold others."""
        return msgpack.unpackb(self._next(limit), max_array_len=0, max_map_len=0)

    def _next(self, limit: int) -> memoryview:
        start = self._walk.tell()
        self._walk.skip()
        stop = self._walk.tell()
        if stop - start > limit:
            raise FormatError(f"a value of {stop - start} bytes is over {limit}")
        return self._packed[start:stop]

    def end(self) -> None:
        """Check that nothing is left."""
        if self._walk.tell() != len(self._packed):
            raise FormatError("there is more than one document")


def unpack_bounded(packed: Packed, make: Callable[[dict[str, Any]], Any], containers: int) -> Any:
    """Return a document of at most so many lists and dicts; each dict is what `make` makes of it.

    Where `make` returns an int, the dict does not count.

    Raises:
        FormatError: it is no whole document, or has more of them.
    """
    left = containers

    def counted(made: Any) -> Any:
        nonlocal left
        left -= type(made) is not int
        if left < 0:
            raise FormatError(f"the document has more than {containers} lists and dicts")
        return made

    def refuse(code: int, data: bytes) -> Any:
        raise FormatError(f"the document has an extension of type {code}, which the format has not")

    try:
        msgpack.Unpacker(_File(packed), read_size=1 << 16).skip()
        return msgpack.unpackb(
            packed,
            object_hook=lambda value: counted(make(value)),
            list_hook=counted,
            ext_hook=refuse,
            unicode_errors="surrogatepass",
        )
    except FormatError:
        raise
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise FormatError(f"the document is not valid msgpack: {error!r:.200}") from error
