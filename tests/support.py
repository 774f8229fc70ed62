"""What several test modules share: an equality that sees every bit and every type."""

import copy
import dataclasses
import math
import struct
from collections import OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import torch
from torch import nn

__all__ = [
    "assert_same",
    "difference",
    "nan_with_payload",
    "random_bits",
    "same",
    "state_of",
    "tensor_bits",
    "train",
    "views",
]


def same(saved: Any, restored: Any) -> bool:
    """Tell whether two states are equal down to bits, types, order and strides."""
    return not difference(saved, restored)


def assert_same(saved: Any, restored: Any) -> None:
    """Fail with the path of the first difference."""
    found = difference(saved, restored)
    assert not found, found


def difference(a: Any, b: Any, path: str = "state") -> str:
    """Return where two states differ first and how, or an empty string.

    Strides count where the elements of the first are dense; other views come back in C order.
    """
    if type(a) is not type(b):
        return f"{path}: {type(a).__name__} and {type(b).__name__}"
    if isinstance(a, torch.Tensor):
        return _of_tensors(a, b, path)
    if isinstance(a, np.ndarray):
        return _first(path, _of_array(a), _of_array(b)) or _first(path, a.tobytes(), b.tobytes())
    if isinstance(a, np.generic):
        return _first(path, (a.dtype, a.tobytes()), (b.dtype, b.tobytes()))
    if isinstance(a, dict):
        return _of_dicts(a, b, path)
    if isinstance(a, list | tuple | deque):
        return _of_sequences(a, b, path)
    if isinstance(a, set | frozenset):
        return _of_sequences(sorted(a, key=_order), sorted(b, key=_order), path)
    if dataclasses.is_dataclass(a) or type(a).__name__ in ("Namespace", "SimpleNamespace"):
        return difference(_fields(a), _fields(b), path)
    if isinstance(a, torch.Generator):
        return difference(a.get_state(), b.get_state(), path)
    return _first(path, _plain_key(a), _plain_key(b))


def tensor_bits(tensor: torch.Tensor) -> bytes:
    """Return a tensor's values as bytes in C order."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    flat = plain.clone(memory_format=torch.contiguous_format).view(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _of_tensors(a: torch.Tensor, b: torch.Tensor, path: str) -> str:
    plain = [(t.dtype, t.shape, t.layout, t.requires_grad, t.device) for t in (a, b)]
    if found := _first(path, *plain):
        return found
    if a.layout is not torch.strided:
        return difference(_parts(a), _parts(b), path)
    dense = a.numel() and torch.empty_like(a).stride() == a.stride()
    if dense and (found := _first(f"the strides of {path}", a.stride(), b.stride())):
        return found
    return "" if a.is_meta else _first(path, tensor_bits(a), tensor_bits(b))


def _of_array(a: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    return a.dtype, a.dtype.char, a.shape, a.flags.f_contiguous and not a.flags.c_contiguous


def _parts(t: torch.Tensor) -> list[Any]:
    if t.layout is torch.sparse_coo:
        return [t.is_coalesced(), t.detach()._indices(), t.detach()._values()]
    rows = t.layout in (torch.sparse_csr, torch.sparse_bsr)
    ends = [t.crow_indices(), t.col_indices()] if rows else [t.ccol_indices(), t.row_indices()]
    return [*ends, t.detach().values()]


def _of_dicts(a: dict[Any, Any], b: dict[Any, Any], path: str) -> str:
    keys = _of_sequences(list(a), list(b), f"the keys of {path}")
    if keys:
        return keys
    if isinstance(a, defaultdict) and a.default_factory is not b.default_factory:
        return f"{path}: another default_factory"
    if isinstance(a, OrderedDict) and (found := difference(vars(a), vars(b), f"{path}.__dict__")):
        return found
    return _of_sequences(list(a.values()), list(b.values()), f"{path}.values")


def _of_sequences(a: Any, b: Any, path: str) -> str:
    if len(a) != len(b) or getattr(a, "maxlen", None) != getattr(b, "maxlen", None):
        return f"{path}: {len(a)} and {len(b)} items"
    pairs = zip(a, b, strict=True)
    return next((d for i, (x, y) in enumerate(pairs) if (d := difference(x, y, f"{path}/{i}"))), "")


def _fields(value: Any) -> dict[str, Any]:
    slots = [s for kind in type(value).__mro__ for s in getattr(kind, "__slots__", ())]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return found | getattr(value, "__dict__", {})


def _plain_key(value: Any) -> Any:
    """Return something that is equal exactly when two plain values of one type are the same."""
    if isinstance(value, float):
        return struct.pack(">d", value)
    if isinstance(value, complex):
        return struct.pack(">dd", value.real, value.imag)
    if isinstance(value, slice):
        return repr(value)
    if type(value).__module__ in ("datetime", "decimal", "fractions"):
        return repr(value), getattr(value, "fold", 0)
    return value


def _order(value: Any) -> tuple[str, str]:
    return type(value).__name__, repr(value)


def nan_with_payload(payload: int) -> float:
    """Return a NaN whose bits are not those of `math.nan`."""
    made: float = struct.unpack(">d", struct.pack(">Q", 0x7FF8_0000_0000_0000 | payload))[0]
    assert math.isnan(made)
    return made


def _first(path: str, a: Any, b: Any) -> str:
    return "" if a == b else f"{path}: {a!r:.100} and {b!r:.100}"


def random_bits(dtype, shape, seed=0):
    """A tensor of any bit patterns at all: NaNs of every payload, denormals, both zeros."""
    made = torch.zeros(shape, dtype=dtype)
    raw = np.random.default_rng(seed).integers(0, 256, made.nbytes, dtype=np.uint8)
    if dtype is torch.bool:
        raw &= 1
    if made.numel():
        made.view(-1).view(torch.uint8).copy_(torch.from_numpy(raw))
    return made


def views(base):
    """Views of a four-dimensional tensor with every kind of strides."""
    return {
        "transposed": base.transpose(0, 3),
        "permuted": base.permute(2, 0, 3, 1),
        "every second": base[:, ::2],
        "column": base[:, :, :, 1],
        "expanded": base[:1].expand(5, -1, -1, -1),
        "expanded within": base[:, :1].expand(-1, 4, -1, -1),
        "overlapping": base.reshape(-1).unfold(0, 4, 1),
        "channels_last": base.contiguous(memory_format=torch.channels_last),
        "sliced in the middle": base[1:, 1:2, :, 2:],
    }


def state_of(*parts):
    """Copies of what several objects have as their state."""
    return [copy.deepcopy(part.state_dict()) for part in parts]


def train(net: nn.Module, optimizer: Any, steps: int, closure: bool = False) -> None:
    """Take a few real steps on images of noise; `closure` for optimizers that ask again."""
    for _ in range(steps):
        x = torch.randn(6, 1, 4, 4)
        y = torch.randint(3, (6,))

        def loss(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            found = nn.functional.cross_entropy(net(x), y)
            found.backward()
            return found

        optimizer.step(loss) if closure else (loss(), optimizer.step())
