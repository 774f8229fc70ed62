"""Tensors that are stored as other tensors: sparse ones by their parts, complex32 by its halves.

Zarr has no data type for complex32; its real and imaginary parts are the last dimension of a
float16 array.
"""

from __future__ import annotations

from typing import Any

import torch

from datastates.errors import FormatError
from datastates.provider import Finish, Loader, Saver

Tensor = torch.Tensor

_SPARSE = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
_LAYOUTS = {str(layout): layout for layout in (torch.sparse_coo, *_SPARSE)}


def status(target: object) -> str:
    """Describe a target in a message."""
    if not isinstance(target, Tensor):
        return type(target).__name__
    view = " (a conjugate or negative view)" if target.is_conj() or target.is_neg() else ""
    kind = str(target.dtype).removeprefix("torch.")
    if type(target) not in (Tensor, torch.nn.Parameter):
        kind = f"{type(target).__name__} of {kind}"
    return f"{kind} {tuple(target.shape)} on {target.device}{view}"


def finished(tensor: Tensor, data: Any) -> Tensor:
    """Make a new tensor what it was: a Parameter or not, with a gradient or not."""
    grad = bool(data["grad"]) and (tensor.is_floating_point() or tensor.is_complex())
    if data["parameter"]:
        return torch.nn.Parameter(tensor, requires_grad=grad)
    return tensor.requires_grad_(grad)


def put(tensor: Tensor, target: Tensor) -> Tensor:
    """Copy a tensor's values into the target, which has its shape; return the target."""
    with torch.no_grad():
        if target.layout in _SPARSE and target.values().shape != tensor.values().shape:
            target.resize_as_sparse_(tensor)
        return target.copy_(tensor)


def split_sparse(value: Tensor, saver: Saver) -> dict[str, Any]:
    """Return the plain data of a sparse tensor."""
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
        "dtype": str(plain.dtype),
        "coalesced": plain.layout is torch.sparse_coo and plain.is_coalesced(),
        "parts": [saver.child(part, f"part{i}") for i, part in enumerate(parts)],
    }


def join_sparse(data: Any, target: Any, loader: Loader) -> Finish:
    """Make a sparse tensor anew, and copy it into the target if there is one."""
    layout, size = _LAYOUTS[data["layout"]], tuple(data["size"])
    fits = isinstance(target, Tensor) and target.layout is layout and target.shape == size
    fits = fits and str(target.dtype) == data["dtype"]
    if target is not None and not fits and not loader.adopting:
        loader.mismatch(f"{status(target)} here, {data['layout']} {size} stored")
        return lambda: target
    parts = [loader.child(part, None) for part in data["parts"]]

    def finish() -> Tensor:
        try:
            made = _sparse(layout, size, [part() for part in parts], data["coalesced"])
        except (RuntimeError, ValueError, IndexError) as error:
            raise loader.error(FormatError, f"torch refuses its parts: {error}") from error
        return put(made, target) if fits else finished(made, data)

    return finish


def _sparse(
    layout: torch.layout, size: tuple[int, ...], parts: list[Tensor], coalesced: bool
) -> Tensor:
    if layout is torch.sparse_coo:
        coo = torch.sparse_coo_tensor(parts[0], parts[1], size, check_invariants=True)
        return coo._coalesced_(coalesced)
    return torch.sparse_compressed_tensor(
        parts[0], parts[1], parts[2], size, layout=layout, check_invariants=True
    )


def split_half(value: Tensor, saver: Saver) -> dict[str, Any]:
    """Return the plain data of a complex32 tensor."""
    return {"half": saver.child(torch.view_as_real(value.detach().resolve_conj()))}


def join_half(data: Any, target: Any, loader: Loader) -> Finish:
    """Fill the halves of a complex32 tensor, or make one."""
    fits = isinstance(target, Tensor) and target.dtype is torch.complex32
    fits = fits and target.layout is torch.strided and not target.is_conj()
    if target is not None and not fits and not loader.adopting:
        loader.mismatch(f"{status(target)} here, complex32 stored")
        return lambda: target
    view = torch.view_as_real(target.detach()) if fits else None
    half = loader.child(data["half"], view)

    def finish() -> Tensor:
        found = half()
        return target if found is view else finished(torch.view_as_complex(found), data)

    return finish
