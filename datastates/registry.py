"""Providers and tiers by name, from entry points: ours are found exactly as anyone else's are.

Nothing is imported before it is asked for, and there is no global state: a `Registry` is made per
use and remembers what it has loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from .errors import UnknownNameError, UsageError
from .provider import Provider

__all__ = ["PROVIDERS", "TIERS", "Providers", "installed", "load", "names"]

PROVIDERS = "datastates.providers"
TIERS = "datastates.tiers"


def _points(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}


def names(group: str) -> list[str]:
    """Return the installed names of `group`, sorted."""
    return sorted(_points(group))


def load(group: str, name: str) -> Any:
    """Import and return what is registered as `name`.

    Raises:
        UnknownNameError: nothing is; the message lists what there is.
        UsageError: it needs a package that is not installed.
    """
    return _load(_points(group), group, name)


def _load(points: dict[str, EntryPoint], group: str, name: str) -> Any:
    if name not in points:
        known = ", ".join(sorted(points)) or "none: is datastates installed?"
        raise UnknownNameError(
            f"no {group.rpartition('.')[2]} entry called {name!r}; known: {known}"
        )
    try:
        return points[name].load()
    except ImportError as error:
        raise UsageError(f"{group} {name!r} cannot be imported: {error}") from error


def installed() -> list[Provider]:
    """Return one of each provider that is installed."""
    points = _points(PROVIDERS)  # looked up once: that reads every installed package's metadata
    return [_load(points, PROVIDERS, name)() for name in sorted(points)]


class Providers:
    """The providers in use, asked by type when saving and by name when restoring."""

    def __init__(self, providers: Iterable[Provider]) -> None:
        self._all = sorted(providers, key=lambda p: (-p.priority, p.name))
        self._by_name = {provider.name: provider for provider in self._all}
        self._by_type: dict[type, Provider | None] = {}

    def for_type(self, kind: type) -> Provider | None:
        """Return the provider that takes objects of this type, or None."""
        if kind not in self._by_type:
            self._by_type[kind] = next((p for p in self._all if p.claims(kind)), None)
        return self._by_type[kind]

    def named(self, name: str) -> Provider:
        """Return the provider that wrote an object.

        Raises:
            UnknownNameError: it is not installed here.
        """
        if name not in self._by_name:
            known = ", ".join(sorted(self._by_name))
            raise UnknownNameError(f"no provider called {name!r} is installed; known: {known}")
        return self._by_name[name]
