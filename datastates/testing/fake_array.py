"""Arrays on a `FakeDevice`, and the provider that saves and restores them.

Whatever changes one is queued on the calling thread's stream and runs when the device does; the
version counts when it is queued, as torch's does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from datastates.device import Bytes
from datastates.provider import ArrayLeaf, Finish, Loader, Memory, Provider, Saver
from datastates.sources import bytes_of

from .fake_device import FakeDevice

__all__ = ["FakeArray", "FakeProvider"]

_PIECES = 4


class FakeArray:
    """An array in C order in the memory of a device; it is there when this returns."""

    def __init__(self, values: npt.NDArray[Any], device: FakeDevice) -> None:
        self._values: npt.NDArray[Any] | None = np.array(values, order="C")
        self.dtype, self.shape = values.dtype, values.shape
        """As of numpy."""
        self.device = device
        """Where it lies."""
        self.version = 0
        """Counts the changes that count."""

    @property
    def values(self) -> npt.NDArray[Any]:
        """The device's memory as it is now, whatever is queued.

        Raises:
            RuntimeError: it was freed; the device is lost, as a real one is.
        """
        if self._values is None:
            self.device.fail("an illegal memory access was encountered: the device is lost")
            raise RuntimeError("an array was read that has been freed")
        return self._values

    @property
    def memory(self) -> Bytes:
        """The same as bytes."""
        return bytes_of(self.values)

    def add_(self, value: Any) -> None:
        """Queue an addition to every element, piece by piece."""
        self.version += 1
        flat = self.values.reshape(-1)
        step = max(1, -(-flat.size // _PIECES))
        parts = [flat[at : at + step] for at in range(0, flat.size, step)]
        self.device.launch(*(lambda p=part: np.add(p, value, out=p) for part in parts))

    def add_uncounted_(self, value: Any) -> None:
        """Queue an addition that leaves the version alone, as fused kernels do; in one piece."""
        values = self.values
        self.device.launch(lambda: np.add(values, value, out=values))

    def write(self, start: int, data: Bytes) -> None:
        """Queue that bytes are stored from `start` on, and wait until they are."""
        self.version += 1
        memory = self.memory
        self.device.launch(lambda: memory[start : start + len(data)].__setitem__(..., data))
        self.device.mark().wait()

    def numpy(self) -> npt.NDArray[Any]:
        """Wait for what this thread has queued, and return a copy of the values."""
        found = np.empty(self.shape, self.dtype)
        memory = self.memory
        self.device.launch(lambda: bytes_of(found).__setitem__(..., memory))
        self.device.mark().wait()
        return found

    def free(self) -> None:
        """Give the memory back; what is queued keeps it until it has run."""
        self._values = None

    # What a guarded optimizer's tensors have.

    def data_ptr(self) -> int:
        """Return the address of the first element, 0 where it was freed."""
        return 0 if self._values is None else int(self._values.ctypes.data)

    def numel(self) -> int:
        """Return the number of elements."""
        return int(np.prod(self.shape))

    def element_size(self) -> int:
        """Return the bytes of one element."""
        return int(self.dtype.itemsize)


class _Source:
    """An array's bytes, and whether they change."""

    def __init__(self, array: FakeArray) -> None:
        self._array = array

    @property
    def memory(self) -> Bytes:
        return self._array.memory

    def read(self, start: int, out: Bytes) -> None:
        """See `Source.read`; waits for the device."""
        memory = self.memory[start : start + len(out)]
        self._array.device.launch(lambda: out.__setitem__(..., memory))
        self._array.device.mark().wait()

    def stamp(self) -> Hashable:
        """See `Watch.stamp`."""
        return self._array.version, self._array.data_ptr()

    def sample(self, items: npt.NDArray[np.int64]) -> Callable[[], Bytes]:
        """See `Watch.sample`; queued on the stream of the caller, fetched by whoever asks."""
        values = self._array.values.reshape(-1)
        found = np.empty(len(items), values.dtype)
        device = self._array.device
        device.launch(lambda: np.take(values, items, out=found))
        there = device.mark()

        def fetch() -> Bytes:
            there.wait()
            return bytes_of(found)

        return fetch


class _Sink:
    """Takes the bytes of an array, behind what its maker has queued: others write, elsewhere."""

    def __init__(self, array: FakeArray) -> None:
        self._array = array
        self._ready = array.device.mark()
        self.nbytes = array.numel() * array.element_size()

    def write(self, start: int, data: Bytes) -> None:
        """See `Sink.write`."""
        self._ready.wait()
        self._array.write(start, data)


class FakeProvider(Provider):
    """Takes `FakeArray`; without a target it comes back as an array of numpy."""

    name: ClassVar[str] = "fake_array"
    in_place: ClassVar[bool] = True

    def claims(self, kind: type) -> bool:
        """See `Provider.claims`."""
        return kind is FakeArray

    def split(self, value: FakeArray, saver: Saver) -> Any:
        """See `Provider.split`."""
        source, start = _Source(value), value.data_ptr()
        if not start:
            raise saver.refuse("it was freed")
        strides = tuple(s // value.element_size() for s in value.values.strides)
        memory = Memory("fake", start, start + value.values.nbytes, strides, True)
        leaf = ArrayLeaf(value.dtype.name, value.shape, source, memory, source, value.device)
        return {"array": saver.array(leaf), "dtype": value.dtype.name}

    def join(self, data: Any, target: Any, loader: Loader) -> Finish:
        """See `Provider.join`."""
        name, shape = loader.describe(data["array"])
        if isinstance(target, FakeArray):
            if (target.dtype.name, target.shape) != (name, shape):
                loader.mismatch(f"{target.dtype.name} {target.shape} here, {name} {shape} stored")
                return lambda: target
            loader.read(data["array"], _Sink(target))
            return lambda: target
        made = np.empty(shape, name)
        loader.read(data["array"], bytes_of(made))
        return lambda: made
