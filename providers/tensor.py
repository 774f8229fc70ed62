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

import torch
from torch.nn.parameter import is_lazy

from datastates.dtypes import ITEMSIZE
from datastates.errors import FormatError
from datastates.provider import Finish, LeafRef, Loader, Provider, Saver
from datastates.sources import ArraySink, is_c_order, is_dense, is_disjoint, reach

from .torch_memory import (
    DTYPES,
    NAMES,
    Flat,
    as_numpy,
    c_strides,
    destination,
    leaf_of,
)
from .torch_parts import finished, join_half, join_sparse, put, split_half, split_sparse, status

Tensor = torch.Tensor


def _fits(target: Any, name: str, shape: tuple[int, ...]) -> bool:
    if type(target) not in (Tensor, torch.nn.Parameter) or target.layout is not torch.strided:
        return False  # a subclass has more than its memory
    if target.is_meta or target.is_quantized or target.is_conj() or target.is_neg():
        return False
    return tuple(target.shape) == shape and NAMES.get(target.dtype) == name


def _is_plain(data: Any, shape: tuple[int, ...]) -> bool:
    return "strides" not in data or is_c_order(shape, tuple(data["strides"]))


def _check_storage(tensor: Tensor, saver: Saver) -> None:
    """Refuse a tensor whose storage was freed or cut (as FSDP does): its memory is not its own."""
    last = tensor.storage_offset() + reach(tuple(tensor.shape), tensor.stride())
    needed = (last + 1) * tensor.element_size()
    if tensor.numel() and tensor.untyped_storage().nbytes() < needed:
        raise saver.refuse("its storage was freed or resized: its values are gone")


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
        if value.dim() > 64:
            raise saver.refuse(f"tensors of {value.dim()} dimensions are not supported, only of 64")
        grad = bool(value.requires_grad and value.is_leaf)
        data: dict[str, Any] = {"parameter": type(value) is torch.nn.Parameter, "grad": grad}
        if value.layout is not torch.strided:
            return data | split_sparse(value, saver)
        if value.dtype is torch.complex32:
            return data | split_half(value, saver)
        name = NAMES.get(value.dtype)
        if name is None:
            raise saver.refuse(f"tensors of dtype {value.dtype} are not supported")
        shape, strides = tuple(value.shape), value.stride()
        if value.numel() and strides != c_strides(shape):
            data["strides"] = list(strides)
        if value.is_meta:
            return data | {"meta": [name, list(shape)]}
        _check_storage(value, saver)
        plain, own = value.detach(), True
        if value.is_conj() or value.is_neg():
            plain, own = plain.resolve_conj().resolve_neg(), False
        data["array"] = saver.array(leaf_of(name, shape, plain, own=own))
        return data

    def join(self, data: Any, target: Any, loader: Loader) -> Finish:
        """See `Provider.join`."""
        if isinstance(target, Tensor) and is_lazy(target):
            target = None  # a lazy module makes its parameters from what it is given to load
        if "half" in data:
            return join_half(data, target, loader)
        if "layout" in data:
            return join_sparse(data, target, loader)
        if "meta" in data:
            return self._join_meta(data, target, loader)
        name, shape = loader.describe(data["array"])
        if _fits(target, name, shape):
            return self._fill(target, data, loader)
        if target is not None and not loader.adopting:
            loader.mismatch(f"{status(target)} here, {name} {shape} stored")
            return lambda: target
        made = self._make(data, loader)
        return lambda: finished(made(), data)

    def _join_meta(self, data: Any, target: Any, loader: Loader) -> Finish:
        """There are no values to restore, so a tensor of that kind is left as it is."""
        name, shape = data["meta"][0], tuple(data["meta"][1])
        strides = data.get("strides", c_strides(shape))
        made = torch.empty_strided(shape, strides, dtype=DTYPES[name], device="meta")
        like = isinstance(target, Tensor) and target.shape == shape and target.dtype == made.dtype
        if target is not None and not like and not loader.adopting:
            loader.mismatch(f"{status(target)} here, {name} {shape} on meta stored")
            return lambda: target
        return lambda: target if like else finished(made, data)

    def _fill(self, target: Tensor, data: Any, loader: Loader) -> Finish:
        """Read into memory that is there."""
        ref, shape = data["array"], tuple(target.shape)
        if not is_disjoint(shape, target.stride()):
            loader.mismatch(f"{status(target)} here is expanded: its elements share memory")
            return lambda: target
        if target.numel() and not loader.claim(ref, str(target.device), target.data_ptr()):
            return lambda: target
        alias = loader.alias(ref)
        if alias is not None and not alias.strided and not _is_plain(data, shape):
            made = self._make(data, loader)  # a strided view of another array: by way of that one
            return lambda: put(made(), target)
        loader.read(ref, destination(target))
        return lambda: target

    def _geometry(
        self, data: Any, loader: Loader
    ) -> tuple[str, tuple[int, ...], tuple[int, ...], int]:
        """Return dtype name, base shape, strides and first element of a view; checked."""
        name, shape = loader.describe(data["array"])
        alias = loader.alias(data["array"])
        base, offset = (data["array"], 0) if alias is None else (LeafRef(alias.base), alias.offset)
        _, base_shape = loader.describe(base)
        strides = tuple(data["strides"]) if "strides" in data else c_strides(shape)
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
        own = alias is None or alias.strided  # it lies in memory of its own, as it lay
        if own and "strides" in data and not is_dense(shape, tuple(data["strides"])):
            data = {key: value for key, value in data.items() if key != "strides"}
        _, _, strides, first = self._geometry(data, loader)
        base = ref if alias is None else LeafRef(alias.base)
        memory: Flat = loader.shared(base, lambda: Flat(base, loader))
        if own and not _is_plain(data, shape):
            view = as_numpy(memory.host.as_strided(shape, strides))
            loader.read(base, memory.sink(lambda: ArraySink(view)))
        else:
            loader.read(base, memory.bytes)  # in C order, as whatever has views lies in memory
        return lambda: memory.tensor().as_strided(shape, strides, first)
