"""Where tensors lie: their memory as bytes to read and to fill, on the host and on devices."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from datastates.dtypes import ITEMSIZE
from datastates.errors import NoMemoryError, UsageError
from datastates.provider import ArrayLeaf, Bytes, LeafRef, Loader, Memory, Sink
from datastates.sources import ArraySink, ArraySource, bytes_of, is_dense, reach, walk

from .torch_device import device_of

Tensor = torch.Tensor

NAMES: dict[torch.dtype, str] = {
    getattr(torch, name): name for name in ITEMSIZE if hasattr(torch, name)
}
"""The stored data type of each torch dtype that has one."""

DTYPES = {name: dtype for dtype, name in NAMES.items()}
"""And back."""

_SMALL_NBYTES = 64 << 10
_MEMMOVE = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memmove = ctypes.CFUNCTYPE(*_MEMMOVE)(("memmove", ctypes.CDLL(None)))
_memmove_small = ctypes.PYFUNCTYPE(*_MEMMOVE)(("memmove", ctypes.PyDLL(None)))
"""Keeps the GIL: to give it away takes longer than a small copy."""

_TYPESTR = {1: "|u1", 2: "<i2", 4: "<i4", 8: "<i8", 16: "<c16"}
_RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def raw(tensor: Tensor) -> Tensor:
    """Return a tensor's elements as integers of the same size, so that moving keeps every bit."""
    plain = tensor.detach()
    if plain.dtype in (torch.complex64, torch.complex128):
        return plain
    return plain.view(_RAW[plain.element_size()])


class _Exposed:
    """A CPU tensor as numpy's array interface; `Tensor.numpy()` would fix its storage's size."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
            "typestr": _TYPESTR[size],
            "data": (tensor.data_ptr(), False),
        }


def as_numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return the memory of a CPU tensor as a numpy array of raw elements, not a copy.

    The array keeps the tensor alive, and leaves it as it is: its storage can still be resized.
    """
    if not tensor.numel():
        return np.empty(tuple(tensor.shape), _TYPESTR[tensor.element_size()])
    return np.asarray(_Exposed(tensor))


@lru_cache(maxsize=4096)
def c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a new tensor of this shape."""
    return tuple(prod(max(1, n) for n in shape[d + 1 :]) for d in range(len(shape)))


class TensorSource:
    """The bytes of a tensor, and whether they change: its counter, its storage, its elements.

    Made for each tensor in each save, inside the call: so it looks at nothing before it must.
    """

    def __init__(self, tensor: Tensor, storage: torch.UntypedStorage) -> None:
        self._tensor, self._storage = tensor, storage

    def stamp(self) -> Hashable:
        """See `Watch.stamp`."""
        return self._tensor._version, self._storage.data_ptr(), self._storage.nbytes()


class HostSource(TensorSource):
    """A tensor in host memory."""

    def read(self, start: int, out: Bytes) -> None:
        """Copy `[start, start + len(out))` into `out`."""
        if self._tensor.is_contiguous() and len(out):
            move = _memmove if len(out) > _SMALL_NBYTES else _memmove_small
            to = ctypes.addressof(ctypes.c_char.from_buffer(out.data))
            move(to, self._tensor.data_ptr() + start, len(out))
        else:
            self._source.read(start, out)

    @cached_property
    def _source(self) -> ArraySource:
        return ArraySource(as_numpy(self._tensor))

    def sample(self, items: npt.NDArray[np.int64]) -> Callable[[], Bytes]:
        """See `Watch.sample`."""
        array = as_numpy(self._tensor)
        if array.flags.c_contiguous:
            found = array.reshape(-1)[items]
        else:
            found = array[np.unravel_index(items, array.shape)]
        return lambda: bytes_of(found)


class DeviceSource(TensorSource):
    """A tensor on an accelerator; each read is one copy to the host."""

    @cached_property
    def flat(self) -> Tensor:
        """The elements in C order, on the device: the tensor's own where it lies so."""
        return raw(self._tensor).contiguous().view(-1)

    def read(self, start: int, out: Bytes) -> None:
        """Copy `[start, start + len(out))` into `out`; blocks until it is there."""
        size = self.flat.element_size()
        part = self.flat[start // size : (start + len(out)) // size]
        torch.from_numpy(out).view(part.dtype).copy_(part)

    def sample(self, items: npt.NDArray[np.int64]) -> Callable[[], Bytes]:
        """See `Watch.sample`; queued on the stream of the caller."""
        device, index = device_of(self._tensor), torch.from_numpy(items)
        if device is not None:
            fetch = device.sample(self.flat, index)
            return lambda: bytes_of(fetch().numpy())
        values = self.flat[index.to(self.flat.device)]
        return lambda: bytes_of(values.cpu().numpy())


class DeviceSink:
    """Takes bytes for a tensor that is not in host memory.

    Behind what the thread that makes it has queued: those that write have streams of their own.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = raw(tensor)
        device = device_of(tensor)
        self._ready = None if device is None else device.mark()
        self.nbytes = tensor.numel() * tensor.element_size()
        """How many bytes fill it."""

    def write(self, start: int, data: Bytes) -> None:
        """Store the bytes `[start, start + len(data))`; blocks until they are on the device."""
        if self._ready is not None:
            self._ready.wait()
        size = self._tensor.element_size()
        values = torch.from_numpy(data).view(self._tensor.dtype)
        if self._tensor.is_contiguous():
            self._tensor.view(-1)[start // size : (start + len(data)) // size].copy_(values)
        else:
            walk(self._tensor, start // size, values, lambda part, run: part.copy_(run))


def leaf_of(name: str, shape: tuple[int, ...], tensor: Tensor, *, own: bool) -> ArrayLeaf:
    """Return the leaf of a strided tensor; `own` where its memory is the state's, not a copy."""
    storage = tensor.untyped_storage()
    device = device_of(tensor)
    if tensor.device.type == "cpu":
        source: HostSource | DeviceSource = HostSource(tensor, storage)
    else:
        source = DeviceSource(tensor, storage)
        _ = source.flat  # where it is a copy, that is queued now
    if not own:
        return ArrayLeaf(name, shape, source, device=device)
    contiguous = tensor.device.type == "cpu" or tensor.is_contiguous()
    watch = source if contiguous and not tensor.is_inference() else None
    return ArrayLeaf(name, shape, source, memory_of(tensor), watch, device)


def destination(tensor: Tensor) -> Bytes | Sink:
    """Return where to read a tensor's bytes to: straight into its memory where that is possible."""
    if tensor.device.type != "cpu":
        return DeviceSink(tensor)
    array = as_numpy(tensor)
    return bytes_of(array) if array.flags.c_contiguous else ArraySink(array)


def memory_of(tensor: Tensor) -> Memory | None:
    """Return where a tensor lies; None where it has no elements."""
    if tensor.numel() == 0:
        return None
    shape, strides = tuple(tensor.shape), tensor.stride()
    start = tensor.data_ptr()
    stop = start + (reach(shape, strides) + 1) * tensor.element_size()
    return Memory(str(tensor.device), start, stop, strides, is_dense(shape, strides))


class Flat:
    """New memory for one stored array, shared by all tensors that are views of it."""

    def __init__(self, ref: LeafRef, loader: Loader) -> None:
        name, shape = loader.describe(ref)
        nbytes = prod(shape) * ITEMSIZE[name]
        try:  # numpy asks for huge pages, which torch's allocator does not: much faster to fill
            room = np.empty(nbytes + 4096, np.uint8)
        except (MemoryError, ValueError) as error:
            raise loader.error(NoMemoryError, f"there is no memory for {nbytes} bytes") from error
        skip = -room.__array_interface__["data"][0] % 4096
        self.bytes: Bytes = room[skip : skip + nbytes]
        self.host = torch.from_numpy(self.bytes).view(DTYPES[name])
        self._loader, self._device = loader, loader.device
        self._moved: Tensor | None = None
        self._sink: Sink | None = None

    def sink(self, make: Callable[[], Sink]) -> Sink:
        """Return what fills the memory where it is not in C order; one for all names."""
        self._sink = self._sink or make()
        return self._sink

    def tensor(self) -> Tensor:
        """Return the elements, on the device that was asked for; moved once."""
        if self._moved is None:
            self._moved = self.host if self._device is None else self._move(self._device)
        return self._moved

    def _move(self, device: str) -> Tensor:
        """What fails here is the caller's business, and no damage of the checkpoint."""
        try:
            return self.host.to(device)
        except torch.OutOfMemoryError as error:
            raise self._loader.error(NoMemoryError, f"{device} has no memory for it") from error
        except (RuntimeError, AssertionError) as error:
            reason = f"it cannot be put on {device}: {error}"
            raise self._loader.error(UsageError, reason) from error
