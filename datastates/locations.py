"""Where checkpoints lie, as a user writes it: a directory, or `scheme://place`."""

from __future__ import annotations

import os
import re

from .errors import UsageError
from .registry import TIERS, load
from .tier import Tier

__all__ = ["open_tier"]

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)


def open_tier(location: str | os.PathLike[str] | Tier, *, layout: str = "auto") -> Tier:
    """Return the tier at `location`; creates nothing.

    Args:
        location: a path, a string or a tier.
        layout: how it lays new steps out; "auto" leaves that to the tier.

    Raises:
        UsageError: it is none, or has no such layout.
        UnknownNameError: no tier of that scheme is installed.
    """
    if isinstance(location, Tier):
        if layout != "auto":
            raise UsageError(f"give the layout to the tier itself: {location!r} is made already")
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
    kind: type[Tier] = load(TIERS, scheme)
    if layout == "auto":
        return kind(place)
    if layout not in kind.layouts:
        known = ", ".join(["auto", *kind.layouts])
        raise UsageError(f"the tier {scheme} has no layout {layout!r}; it has: {known}")
    return kind(place, layout=layout)  # type: ignore[call-arg] # a tier with layouts takes one
