"""A provider of your own: tensors marked `Compressed` are stored through zlib.

It wraps the tensor provider rather than doing its work again: what it hands on is a tensor of
bytes, which is checksummed, stored and read like any other. `docs/providers.md` explains it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import torch

import datastates as ds


@dataclass(eq=False)
class Compressed:
    """Marks a tensor that is worth compressing, such as a mask or a slow-moving average."""

    tensor: torch.Tensor


class CompressedProvider(ds.Provider):
    """Takes `Compressed`; use with `Checkpointer(..., providers=[CompressedProvider()])`."""

    name = "example.compressed"
    in_place = True  # a target is filled, not replaced

    def claims(self, kind: type) -> bool:
        """Exactly the marker."""
        return kind is Compressed

    def split(self, value: Compressed, saver: ds.Saver) -> Any:
        """Return what `join` needs: the packed bytes, and an empty tensor to know the dtype by."""
        raw = value.tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        packed = torch.frombuffer(bytearray(zlib.compress(raw.numpy(), 1)), dtype=torch.uint8)
        return {
            "packed": saver.child(packed, "packed"),
            "like": saver.child(value.tensor.new_empty(0), "like"),
            "shape": list(value.tensor.shape),
        }

    def join(self, data: Any, target: Any, loader: ds.Loader) -> Any:
        """Ask for the bytes now; unpack them once they are there."""
        packed = loader.child(data["packed"], None)
        like = loader.child(data["like"], None)

        def finish() -> Compressed:
            raw = bytearray(zlib.decompress(packed().numpy()))
            tensor = torch.frombuffer(raw, dtype=like().dtype).reshape(data["shape"])
            if target is None:
                return Compressed(tensor)
            with torch.no_grad():
                target.tensor.copy_(tensor)
            return target  # type: ignore[no-any-return]

        return finish
