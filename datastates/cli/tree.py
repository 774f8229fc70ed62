"""The values of a step as a tree for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text
from rich.tree import Tree

from datastates.manifest import Manifest
from datastates.provider import LeafRef

from .output import human, plural
from .values import Group, Item, shorten

__all__ = ["render"]

_MAX_ITEMS = 24


def render(item: Item, label: str, manifest: Manifest) -> Tree:
    """Return the tree of a value; what holds nothing but arrays is one line of it."""
    text = Text(label, "bold" if isinstance(item, Group) else "")
    if not isinstance(item, Group):
        return Tree(text.append(": ").append(_leaf(item, manifest)), guide_style="dim")
    refs = list(_arrays_of(item))
    if item.items and None not in refs:
        return Tree(text.append_text(_summary(refs, manifest)), guide_style="dim")
    if not any(isinstance(value, Group | LeafRef) for _, value in item.items) and (
        not item.keyed or not item.items
    ):
        return Tree(text.append(": ", "").append(shorten(item), ""), guide_style="dim")
    if item.kind not in ("dict", "list"):
        text.append(f" {item.kind}", "not bold dim")
    tree = Tree(text, guide_style="dim")
    for name, value in item.items[:_MAX_ITEMS]:
        tree.children.append(render(value, name, manifest))
    if len(item.items) > _MAX_ITEMS:
        tree.add(Text(f"… {len(item.items) - _MAX_ITEMS:,} more", "dim"))
    return tree


def _arrays_of(item: Item) -> Iterator[LeafRef | None]:
    """Yield each array below `item`, and None for each value that is none."""
    if isinstance(item, Group) and item.items:
        for _, value in item.items:
            yield from _arrays_of(value)
    else:
        yield item if isinstance(item, LeafRef) else None
