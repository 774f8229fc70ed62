"""A tier around another one: every call passes through two methods that a subclass overrides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

from datastates.manifest import Manifest
from datastates.plan import Extent, Plan, Segment
from datastates.provider import Bytes
from datastates.tier import Damage, Entry, Incomplete, Record, StepReader, StepWriter, Tier

__all__ = ["WrapperTier"]

T = TypeVar("T")


class WrapperTier(Tier):
    """Hands everything on to `inner`, its writers and readers included.

    Methods are known by their names in the contract: `begin`, `write`, `seal`, `commit`, `abort`,
    `entries`, `newest`, `incomplete`, `info`, `open`, `manifest`, `read`, `problems`, `delete`,
    `sweep`.
    What costs nothing (`where`, `free_nbytes`) and `close` are handed on untouched.
    """

    scheme: ClassVar[str] = "wrapper"

    def __init__(self, inner: Tier) -> None:
        super().__init__(inner.location)
        self.inner = inner
        """The tier that does the work."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.inner!r}>"

    def around(self, method: str, call: Callable[[], T]) -> T:
        """Make a call of the inner tier; a subclass does something before, after or instead."""
        return call()

    def transfer(self, method: str, data: Bytes, call: Callable[[Bytes], None]) -> None:
        """Make a `write` of `data`, or a `read` into it; by default as any other call."""
        self.around(method, lambda: call(data))

    def begin(self, step: int, plan: Plan) -> StepWriter:
        """See `Tier.begin`."""
        return _Writer(self, self.around("begin", lambda: self.inner.begin(step, plan)))

    def entries(self) -> Sequence[Entry]:
        """See `Tier.entries`."""
        return self.around("entries", self.inner.entries)

    def newest(self) -> Entry | None:
        """See `Tier.newest`."""
        return self.around("newest", self.inner.newest)

    def incomplete(self) -> Sequence[Incomplete]:
        """See `Tier.incomplete`."""
        return self.around("incomplete", self.inner.incomplete)

    def info(self, entry: Entry) -> Record:
        """See `Tier.info`."""
        return self.around("info", lambda: self.inner.info(entry))

    def open(self, entry: Entry) -> StepReader:
        """See `Tier.open`."""
        return _Reader(self, self.around("open", lambda: self.inner.open(entry)))

    def delete(self, entry: Entry) -> None:
        """See `Tier.delete`."""
        self.around("delete", lambda: self.inner.delete(entry))

    def sweep(self) -> list[str]:
        """See `Tier.sweep`."""
        return self.around("sweep", self.inner.sweep)

    def where(self, entry: Entry) -> str:
        """See `Tier.where`."""
        return self.inner.where(entry)

    def free_nbytes(self) -> int | None:
        """See `Tier.free_nbytes`."""
        return self.inner.free_nbytes()

    def close(self) -> None:
        """See `Tier.close`."""
        self.inner.close()


class _Writer(StepWriter):
    def __init__(self, tier: WrapperTier, inner: StepWriter) -> None:
        self._tier, self._inner = tier, inner

    def write(self, segment: Segment, data: Bytes) -> None:
        self._tier.transfer("write", data, lambda data: self._inner.write(segment, data))

    def seal(self, manifest: Manifest) -> None:
        self._tier.around("seal", lambda: self._inner.seal(manifest))

    def commit(self, record: Record) -> Entry:
        return self._tier.around("commit", lambda: self._inner.commit(record))

    def abort(self) -> None:
        self._tier.around("abort", self._inner.abort)


class _Reader(StepReader):
    def __init__(self, tier: WrapperTier, inner: StepReader) -> None:
        self._tier, self._inner = tier, inner

    def manifest(self) -> Manifest:
        return self._tier.around("manifest", self._inner.manifest)

    def read(self, extent: Extent, out: Bytes) -> None:
        self._tier.transfer("read", out, lambda out: self._inner.read(extent, out))

    def problems(self) -> list[Damage]:
        return self._tier.around("problems", self._inner.problems)

    def close(self) -> None:
        self._inner.close()
