"""The small values of torch: sizes, dtypes, devices, layouts, memory formats."""

from __future__ import annotations

from typing import Any

import torch

from datastates.errors import FormatError
from datastates.provider import Finish, Loader, Provider, Saver

_NAMED = (torch.dtype, torch.layout, torch.memory_format)


class TorchValuesProvider(Provider):
    """Takes `torch.Size`, `torch.device`, `torch.dtype`, `torch.layout`, `torch.memory_format`."""

    name = "torch"
    priority = -20

    def claims(self, kind: type) -> bool:
        """Exact types."""
        return kind in (torch.Size, torch.device, *_NAMED)

    def split(self, value: Any, saver: Saver) -> Any:
        """See `Provider.split`."""
        if isinstance(value, torch.Size):
            return ["size", list(value)]
        if isinstance(value, torch.device):
            return ["device", str(value)]
        return ["name", str(value).removeprefix("torch.")]

    def join(self, data: Any, target: Any, loader: Loader) -> Finish:
        """See `Provider.join`."""
        try:
            if data[0] == "size":
                size = torch.Size(data[1])
                return lambda: size
            if data[0] == "device":
                device = torch.device(data[1])
                return lambda: device
            named = vars(torch).get(data[1])  # no getattr: torch imports modules for it
        except (RuntimeError, AttributeError, TypeError) as error:
            raise loader.error(FormatError, f"torch has no {data[1]!r:.60}") from error
        if not isinstance(named, _NAMED):
            raise loader.error(FormatError, f"torch.{data[1]} is no dtype, layout or format")
        return lambda: named
