"""The files that `export` writes. Torch is imported here, and only when one is written."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datastates.errors import StorageError, UsageError
from datastates.tier import Entry, Span, Tier

if TYPE_CHECKING:
    import torch

__all__ = [
    "Exported",
    "require_safetensors",
    "write_reference",
    "write_safetensors",
    "write_torch",
]


@dataclass(frozen=True, slots=True)
class Exported:
    """What went into the file."""

    tensors: int
    tied: dict[str, str] = field(default_factory=dict)
    """Names that share memory with an earlier one, which is the value, and were written again."""
    left_out: int = 0
    """Values that the format cannot hold."""


def require_safetensors() -> None:
    """Refuse early where the package is not installed.

    Raises:
        UsageError: it is not; the message says how to get it.
    """
    if find_spec("safetensors") is None:
        raise UsageError(
            "the package safetensors is not installed: pip install 'datastates[export]'"
        )


def write_reference(tier: Tier, entry: Entry, file: Path) -> Exported:
    """Write where the keys of a step lie: fsspec's reference format (kerchunk), version 1.

    Raises:
        UsageError: the tier keeps no files.
    """
    with tier.open(entry) as reader:
        keys = reader.as_zarr()
        if keys is None:
            raise UsageError(f"{tier!r} keeps no files that one could refer to")
        found: dict[str, str | list[str | int]] = {}
        for key, value in keys.items():
            if isinstance(value, Span):
                found[key] = [f"{{{{step}}}}/{value.file}", value.offset, value.nbytes]
            else:
                found[key] = value.decode()
        arrays = sum(array.alias is None for array in reader.manifest().arrays)
    templates = {"step": f"file://{tier.where(entry)}"}
    file.write_text(json.dumps({"version": 1, "templates": templates, "refs": found}))
    return Exported(arrays)


def write_torch(state: Any, file: Path) -> Exported:
    """Write a state with `torch.save`."""
    import torch

    with file.open("wb") as out:
        torch.save(state, out)
    return Exported(sum(isinstance(value, torch.Tensor) for _, value in _walk(state, ())))


def write_safetensors(state: Any, file: Path, metadata: Mapping[str, str]) -> Exported:
    """Write the tensors of a state, named by their paths.

    Raises:
        UsageError: there are none, two have one name, or the format has not the type of one.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    values = [(".".join(path), value) for path, value in _walk(state, ())]
    named = [(name, value) for name, value in values if isinstance(value, torch.Tensor)]
    if not named:
        raise UsageError("there is no tensor in it")
    tensors, tied = _separate(named)
    try:
        save_file(tensors, file, {"format": "pt", **metadata})
    except (KeyError, ValueError) as error:
        raise UsageError(f"safetensors cannot hold it: {error}; see --part") from error
    except SafetensorError as error:
        raise StorageError(f"cannot write {file}: {error}") from error
    return Exported(len(tensors), tied, len(values) - len(named))


def _separate(
    named: list[tuple[str, torch.Tensor]],
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors by name, each with memory of its own, and which were tied to which."""
    import torch

    tensors: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    owners: dict[int, str] = {}
    for name, tensor in named:
        if name in tensors:
            raise UsageError(f"two tensors would be called {name}")
        plain = tensor.detach()
        memory = plain.untyped_storage().data_ptr() if plain.layout is torch.strided else 0
        owner = owners.setdefault(memory, name) if memory else name
        if owner != name:
            tied[name] = owner
            plain = plain.clone()
        tensors[name] = plain.contiguous() if memory else plain
    return tensors, tied


def _walk(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each value that is no container, with its path."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(item, (*path, str(key)))
    elif is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            yield from _walk(getattr(value, one.name, None), (*path, one.name))
    elif isinstance(value, list | tuple | deque):
        for i, item in enumerate(value):
            yield from _walk(item, (*path, str(i)))
    else:
        yield path, value
