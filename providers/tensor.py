"""Torch tensors: logical values, strides, ties, and what makes a Parameter one.

Bytes go from where they are to the arena, once, and back straight into the target. Conjugate and
negative views are resolved, since disk holds values; strides are kept where the elements are dense
(`channels_last`, transposed), so a tensor comes back as it lay. Names that share memory are stored
once and share it again.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch

from datastates.dtypes import ITEMSIZE
from datastates.errors import FormatError
from datastates.provider import (
    ArrayLeaf,
    Bytes,
    Finish,
    LeafRef,
    Loader,
    Memory,
    Provider,
    Saver,
    Sink,
    Source,
)
from datastates.sources import ArraySink, ArraySource, bytes_of, is_dense

Tensor = torch.Tensor

_NAMES: dict[torch.dtype, str] = {
    getattr(torch, name): name for name in ITEMSIZE if hasattr(torch, name)
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SPARSE = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
_LAYOUTS = {str(layout): layout for layout in (torch.sparse_coo, *_SPARSE)}


def as_numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return the memory of a CPU tensor as a numpy array of raw elements, not a copy."""
    plain = tensor.detach()
    if plain.dtype in (torch.complex64, torch.complex128):
        return plain.numpy()
    return plain.view(_RAW[plain.element_size()]).numpy()


def _c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(max(1, n) for n in shape[d + 1 :]) for d in range(len(shape)))


class DeviceSource:
    """The bytes of a tensor on an accelerator; each read is one copy to the host."""

    def __init__(self, tensor: Tensor) -> None:
        self._flat = tensor.detach().contiguous().view(-1)

    def read(self, start: int, out: Bytes) -> None:
        """Copy `[start, start + len(out))` into `out`; blocks until it is there."""
        size = self._flat.element_size()
        part = self._flat[start // size : (start + len(out)) // size]
        torch.from_numpy(out).view(part.dtype).copy_(part)


class DeviceSink:
    """Takes bytes for a tensor that is not in host memory."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor.detach()
        self.nbytes = tensor.numel() * tensor.element_size()
        """How many bytes fill it."""

    def write(self, start: int, data: Bytes) -> None:
        """Store the bytes `[start, start + len(data))`; blocks until they are on the device."""
        size = self._tensor.element_size()
        values = torch.from_numpy(data).view(self._tensor.dtype)
        if self._tensor.is_contiguous():
            self._tensor.view(-1)[start // size : (start + len(data)) // size].copy_(values)
        else:
            index = torch.arange(start // size, (start + len(data)) // size)
            where = torch.unravel_index(index, self._tensor.shape)
            self._tensor[tuple(i.to(self._tensor.device) for i in where)] = values.to(
                self._tensor.device
            )


def _source(tensor: Tensor) -> Source:
    return ArraySource(as_numpy(tensor)) if tensor.device.type == "cpu" else DeviceSource(tensor)


def _destination(tensor: Tensor) -> Bytes | Sink:
    if tensor.device.type != "cpu":
        return DeviceSink(tensor)
    array = as_numpy(tensor)
    return bytes_of(array) if array.flags.c_contiguous else ArraySink(array)


def _memory(tensor: Tensor) -> Memory | None:
    if tensor.numel() == 0:
        return None
    shape, strides = tuple(tensor.shape), tensor.stride()
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    start = tensor.data_ptr()
    stop = start + (last + 1) * tensor.element_size()
    return Memory(str(tensor.device), start, stop, strides, is_dense(shape, strides))


def _fits(target: Tensor, name: str, shape: tuple[int, ...]) -> bool:
    plain = target.layout is torch.strided and not target.is_meta and not target.is_quantized
    plain = plain and not target.is_conj() and not target.is_neg()
    return plain and tuple(target.shape) == shape and _NAMES.get(target.dtype) == name


def _status(target: object) -> str:
    if not isinstance(target, Tensor):
        return type(target).__name__
    return f"{str(target.dtype).removeprefix('torch.')} {tuple(target.shape)} on {target.device}"


def _put(tensor: Tensor, target: Tensor) -> Tensor:
    with torch.no_grad():
        return target.copy_(tensor)


def _finish(tensor: Tensor, data: Any) -> Tensor:
    if data["parameter"]:
        return torch.nn.Parameter(tensor, requires_grad=bool(data["grad"]))
    return tensor.requires_grad_(bool(data["grad"]))


def _split_sparse(value: Tensor, saver: Saver) -> dict[str, Any]:
    plain = value.detach()
    if plain.layout is torch.sparse_coo:
        parts = [plain._indices(), plain._values()]
    elif plain.layout in _SPARSE:
        parts = [*(getattr(plain, n)() for n in _SPARSE[plain.layout]), plain.values()]
    else:
        raise saver.refuse(f"tensors of layout {plain.layout} are not supported")
    return {
        "layout": str(plain.layout),
        "size": list(plain.shape),
        "coalesced": plain.layout is torch.sparse_coo and plain.is_coalesced(),
        "parts": [saver.child(part, f"part{i}") for i, part in enumerate(parts)],
    }


class TensorProvider(Provider):
    """Takes `torch.Tensor` and `torch.nn.Parameter` of any layout but nested and quantized."""

    name = "tensor"
    priority = -20
    in_place = True

    def claims(self, kind: type) -> bool:
        """Exact types: a subclass needs a provider that knows what it adds."""
        return kind is Tensor or kind is torch.nn.Parameter

    def split(self, value: Tensor, saver: Saver) -> Any:
        """See `Provider.split`."""
        if value.is_nested or value.is_quantized:
            what = "nested" if value.is_nested else "quantized"
            raise saver.refuse(f"{what} tensors are not supported; save their parts")
        grad = bool(value.requires_grad and value.is_leaf)
        data: dict[str, Any] = {"parameter": type(value) is torch.nn.Parameter, "grad": grad}
        if value.layout is not torch.strided:
            return data | _split_sparse(value, saver)
        if value.dtype is torch.complex32:
            return data | {"half": saver.child(torch.view_as_real(value.detach().resolve_conj()))}
        name = _NAMES.get(value.dtype)
        if name is None:
            raise saver.refuse(f"tensors of dtype {value.dtype} are not supported")
        shape, strides = tuple(value.shape), value.stride()
        if value.numel() and strides != _c_strides(shape) and not value.is_contiguous():
            data["strides"] = list(strides)
        if value.is_meta:
            return data | {"meta": [name, list(shape)]}
        plain = value.detach().resolve_conj().resolve_neg()
        own = plain.data_ptr() == value.data_ptr()
        leaf = ArrayLeaf(name, shape, _source(plain), _memory(plain) if own else None)
        return data | {"array": saver.array(leaf)}

    def join(self, data: Any, target: Any, loader: Loader) -> Finish:
        """See `Provider.join`."""
        if "half" in data or "layout" in data:
            made = self._join_parts(data, loader)
            return self._replace(made, target, data, loader)
        if "meta" in data:
            name, shape = data["meta"]
            empty = torch.empty(tuple(shape), dtype=_DTYPES[name], device="meta")
            return lambda: target if target is not None else _finish(empty, data)
        name, shape = loader.describe(data["array"])
        if isinstance(target, Tensor) and _fits(target, name, shape):
            return self._fill(target, data, loader)
        if target is not None and not loader.adopting:
            loader.mismatch(f"{_status(target)} here, {name} {shape} stored")
            return lambda: target
        made = self._make(data, loader)
        return lambda: _finish(made(), data)

    def _fill(self, target: Tensor, data: Any, loader: Loader) -> Finish:
        """Read into memory that is there."""
        if loader.alias(data["array"]) is not None and "strides" in data:
            made = self._make(data, loader)  # a strided view of another array: by way of that one
            return lambda: _put(made(), target)
        loader.read(data["array"], _destination(target))
        return lambda: target

    def _geometry(
        self, data: Any, loader: Loader
    ) -> tuple[str, tuple[int, ...], tuple[int, ...], int]:
        """Return dtype name, base shape, strides and first element of a view; checked."""
        name, shape = loader.describe(data["array"])
        alias = loader.alias(data["array"])
        base, offset = (data["array"], 0) if alias is None else (LeafRef(alias.base), alias.offset)
        _, base_shape = loader.describe(base)
        strides = tuple(data["strides"]) if "strides" in data else _c_strides(shape)
        first = offset // ITEMSIZE[name]
        last = first + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        if min((*strides, 0)) < 0 or (prod(shape) and last >= prod(base_shape)):
            raise loader.error(FormatError, "its strides reach beyond its memory")
        return name, shape, strides, first

    def _make(self, data: Any, loader: Loader) -> Callable[[], Tensor]:
        """Return a function that gives the new tensor, over memory that names may share."""
        ref: LeafRef = data["array"]
        alias = loader.alias(ref)
        _, shape = loader.describe(ref)
        if alias is None and "strides" in data and not is_dense(shape, tuple(data["strides"])):
            data = {key: value for key, value in data.items() if key != "strides"}
        _, _, strides, first = self._geometry(data, loader)
        base = ref if alias is None else LeafRef(alias.base)
        memory: _Flat = loader.shared(base, lambda: _Flat(base, loader))
        if "strides" in data and (alias is None or alias.strided):
            view = memory.host.as_strided(shape, strides)
            loader.read(base, memory.sink(lambda: ArraySink(as_numpy(view))))
        else:
            loader.read(base, memory.bytes)  # in C order, as whatever has views lies in memory
        return lambda: memory.tensor().as_strided(shape, strides, first)

    def _replace(
        self,
        made: Callable[[], Tensor],
        target: Any,
        data: Any,
        loader: Loader,
    ) -> Finish:
        """Finish a tensor that is made anew, and copied into the target if there is one."""

        def finish() -> Tensor:
            try:
                tensor = made()
            except (RuntimeError, ValueError, IndexError) as error:
                raise loader.error(FormatError, f"torch refuses its parts: {error}") from error
            same = isinstance(target, Tensor) and target.layout is tensor.layout
            return _put(tensor, target) if same and not loader.adopting else _finish(tensor, data)

        return finish

    def _join_parts(self, data: Any, loader: Loader) -> Callable[[], Tensor]:
        if "half" in data:
            half = loader.child(data["half"], None)
            return lambda: torch.view_as_complex(half())
        layout, size = _LAYOUTS[data["layout"]], tuple(data["size"])
        parts = [loader.child(part, None) for part in data["parts"]]

        def make() -> Tensor:
            *indices, values = (part() for part in parts)
            if layout is torch.sparse_coo:
                coo = torch.sparse_coo_tensor(indices[0], values, size, check_invariants=True)
                return coo._coalesced_(data["coalesced"])
            return torch.sparse_compressed_tensor(
                indices[0], indices[1], values, size, layout=layout, check_invariants=True
            )

        return make


class _Flat:
    """New memory for one stored array, shared by all tensors that are views of it."""

    def __init__(self, ref: LeafRef, loader: Loader) -> None:
        name, shape = loader.describe(ref)
        nbytes = prod(shape) * ITEMSIZE[name]
        try:  # numpy asks for huge pages, which torch's allocator does not: much faster to fill
            room = np.empty(nbytes + 4096, np.uint8)
        except (MemoryError, ValueError) as error:
            raise loader.error(MemoryError, f"there is no memory for {nbytes} bytes") from error
        skip = -room.__array_interface__["data"][0] % 4096
        self.bytes: Bytes = room[skip : skip + nbytes]
        self.host = torch.from_numpy(self.bytes).view(_DTYPES[name])
        self._device = loader.device
        self._moved: Tensor | None = None
        self._sink: Sink | None = None

    def sink(self, make: Callable[[], Sink]) -> Sink:
        """Return what fills the memory where it is not in C order; one for all names."""
        self._sink = self._sink or make()
        return self._sink

    def tensor(self) -> Tensor:
        """Return the elements, on the device that was asked for; moved once."""
        if self._moved is None:
            self._moved = self.host if self._device is None else self.host.to(self._device)
        return self._moved
