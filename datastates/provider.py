"""The contract between the state and everything else: providers and the leaves they make.

A provider knows one kind of object. Saving, it takes the object apart into plain data and array
leaves; restoring, it puts it together again, into a target where there is one. It never sees a
file, a tier or a thread, and the core never sees a tensor.

Life of an object of a kind that a provider claims:

1. `claims(kind)` is asked once per type and remembered.
2. `split(value, saver)` runs inside `save_async`, on the caller's thread. It returns plain data:
   None, bool, int, float, str, bytes, lists and str-keyed dicts of these, and what `saver.array`
   and `saver.child` returned (so providers compose).
3. The core copies the leaves' bytes on its own threads: before `save_async` returns, or, where the
   caller has said when they may change and a leaf has a `Watch`, after it. A leaf's source must
   stay readable until then; nothing keeps it alive afterwards.
4. `join(data, target, loader)` runs inside `restore`, before any byte was read. It says where the
   bytes shall go (`loader.read`) and returns a function that finishes the object.
5. That function runs after all reads are done and verified, children first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .device import Bytes, Device, Source

__all__ = [
    "Alias",
    "ArrayLeaf",
    "Bytes",
    "Finish",
    "LeafRef",
    "Loader",
    "Memory",
    "Provider",
    "Saver",
    "Sink",
    "Source",
    "Watch",
]

Finish = Callable[[], Any]
"""Called once, after the reads, to get the restored object."""


class Watch(Protocol):
    """Tells whether a leaf has changed: what makes it safe to copy one after `save_async`.

    No counter is enough: fused optimizers, kernels of normalization layers, writes through
    `.data` and through numpy leave a tensor's version alone. So elements are compared, too.
    """

    def stamp(self) -> Hashable:
        """Return what is another value once a write was counted, or the memory is another.

        Cheap: it is asked for each MiB that is copied. Any thread.
        """

    def sample(self, items: npt.NDArray[np.int64]) -> Callable[[], Bytes]:
        """Look at the elements `items`, by their index in C order, as they are now.

        Returns:
            a function that gives their bytes, one after the other; on a device it waits for them.
        """


class Sink(Protocol):
    """Where the bytes of an array go, when they cannot be read straight into memory."""

    nbytes: int
    """How many bytes it takes."""

    def write(self, start: int, data: Bytes) -> None:
        """Take the verified logical bytes `[start, start + len(data))`; not kept after return.

        Called from several threads at once, with ranges that do not overlap.
        """


class Memory(NamedTuple):
    """Where a leaf lies in memory, so that names which share it are stored once."""

    space: str
    """Address space, e.g. `cpu` or `cuda:0`; addresses of two spaces are never compared."""
    start: int
    """Address of the first byte."""
    stop: int
    """Address after the last byte."""
    strides: tuple[int, ...]
    """In elements."""
    dense: bool
    """True where the elements fill `[start, stop)` without holes or overlap."""


@dataclass(frozen=True, slots=True, eq=False)
class ArrayLeaf:
    """An n-dimensional array of the state: what it is, and how to copy it."""

    dtype: str
    """A Zarr data type name of `datastates.dtypes`."""
    shape: tuple[int, ...]
    source: Source
    memory: Memory | None = None
    """None where nothing else can share the memory."""
    watch: Watch | None = None
    """None where nobody could tell whether it changed: it is then always copied at once."""
    device: Device | None = None
    """Whose copies bring it to the host, in the order of its stream; None for host memory."""


@dataclass(frozen=True, slots=True)
class LeafRef:
    """Stands for a stored array in a provider's plain data."""

    index: int
    """Which array of the image."""


@dataclass(frozen=True, slots=True)
class Alias:
    """A leaf that is a view of another one."""

    base: int
    """Index of the leaf that holds the bytes; never an alias itself."""
    offset: int
    """Bytes from the base's first byte to the view's."""
    strided: bool = False
    """The base is not in C order, and this is the same view of the same memory."""


class Saver(Protocol):
    """What the core offers a provider while it takes an object apart."""

    def array(self, leaf: ArrayLeaf, *keys: Hashable) -> LeafRef:
        """Hand over an array, to be stored under the object's own path and `keys`."""

    def child(self, value: Any, *keys: Hashable) -> Any:
        """Take another value apart, under the object's own path and `keys`; return plain data."""

    def refuse(self, reason: str) -> Exception:
        """Return the error, to be raised, that names the object's path and says `reason`."""


class Loader(Protocol):
    """What the core offers a provider while it puts an object together."""

    @property
    def trusted(self) -> bool:
        """True where the caller vouches for the files, so that unpickling is allowed."""

    @property
    def device(self) -> str | None:
        """The device the caller asked for, for objects without a target; None: the CPU."""

    def describe(self, ref: LeafRef) -> tuple[str, tuple[int, ...]]:
        """Return the data type name and shape of a stored array.

        Raises:
            FormatError: there is no such array.
        """

    def read(self, ref: LeafRef, out: Bytes | Sink) -> None:
        """Ask that the array's bytes, in C order, be read into `out` before the finish runs.

        `out` must stay alive and untouched until then. Asking twice for one array is allowed.
        Memory is filled without a copy where storage and alignment allow it; a sink is fed in
        pieces through a small buffer.
        """

    def claim(self, ref: LeafRef, space: str, start: int) -> bool:
        """Tell whether the array may be read into a target's memory; report a mismatch if not.

        Args:
            ref: the stored array.
            space: the address space, as in `Memory`.
            start: address of the target's first byte. Names that share it in the target must
                share it in the checkpoint, or one would overwrite the other.
        """

    def alias(self, ref: LeafRef) -> Alias | None:
        """Return whose memory this array shared, and where in it, if any."""

    def shared(self, ref: LeafRef, make: Callable[[], Any]) -> Any:
        """Return what `make` returned for this array the first time in this restore."""

    def child(self, data: Any, target: Any, *keys: Hashable, adopt: bool = False) -> Finish:
        """Put a child together, with `target` as its memory where they match.

        With `adopt` the stored structure wins and differences are no mismatch.
        """

    def items(self, pairs: Sequence[tuple[Hashable, Any]], target: Any) -> Finish:
        """Put the values of a mapping together; its finish returns a dict.

        A target that is a dict, and holds arrays or stateful objects anywhere below, is compared
        key by key, filled in place and returned itself.
        """

    @property
    def adopting(self) -> bool:
        """True below a child that was asked for with `adopt`: make a new object, no mismatch."""

    def mismatch(self, reason: str) -> None:
        """Report that the target cannot take what is stored; strict restores then fail."""

    def error(self, kind: type[Exception], reason: str) -> Exception:
        """Return an error of `kind`, to be raised, that names the object's path."""


class Provider(ABC):
    """Takes one kind of object apart and puts it together again."""

    name: ClassVar[str]
    """Written into each checkpoint: it finds this provider again at restore. Never change it."""

    priority: ClassVar[int] = 0
    """Of several providers that claim a type, the highest takes it; ours are negative."""

    in_place: ClassVar[bool] = False
    """True where `join` fills its target. Keys that hold such objects are compared strictly;
    other values are simply replaced by the stored ones."""

    @abstractmethod
    def claims(self, kind: type) -> bool:
        """Tell whether objects of exactly this type are taken apart here. Must not import it."""

    @abstractmethod
    def split(self, value: Any, saver: Saver) -> Any:
        """Return plain data that `join` rebuilds `value` from; see the module's steps.

        Raises:
            UnsupportedValueError: from `saver.refuse`, where it cannot be stored exactly.
        """

    @abstractmethod
    def join(self, data: Any, target: Any, loader: Loader) -> Finish:
        """Prepare the object that `data` describes, in place in `target` where it fits.

        Args:
            data: what `split` returned; child values still plain (see `Loader.child`).
            target: the object at this path in the caller's tree, of any type; None where
                there is none.
            loader: see `Loader`.

        Returns:
            a function that finishes and returns the object, once the reads are done.
        """
