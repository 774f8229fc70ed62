"""Where checkpoints lie, as a user writes it: a directory, or `scheme://place`."""

from __future__ import annotations

import os
import re

from .errors import UsageError
from .registry import TIERS, load
from .tier import Tier

__all__ = ["open_tier"]

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)


def open_tier(location: str | os.PathLike[str] | Tier) -> Tier:
    """Return the tier at `location`; creates nothing.

    Raises:
        UsageError: it is none; UnknownNameError: no tier of that scheme is installed.
    """
    if isinstance(location, Tier):
        return location
    if not isinstance(location, str | os.PathLike):
        raise UsageError(f"a location is a path, a string or a tier, not {location!r}")
    text = os.fspath(location)
    if not isinstance(text, str) or not text or "\0" in text:
        raise UsageError(f"a location is a non-empty path, not {text!r}")
    found = _SCHEME.fullmatch(text)
    scheme, place = found.groups() if found else ("zarr", text)
    if not place:
        raise UsageError(f"{text!r} names no place after the scheme")
    tier: Tier = load(TIERS, scheme)(place)
    return tier
