"""The values of a step as a tree for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text
from rich.tree import Tree

from datastates.manifest import Manifest
from datastates.provider import LeafRef

from .arrays import array_at, shape_text
from .output import human, plural
from .values import Group, Item, shorten

__all__ = ["render"]

_MAX_ITEMS = 24


def render(item: Item, label: str, manifest: Manifest) -> Tree:
    """Return the tree of a value; what holds nothing but arrays is one line of it."""
    line = _line(item, manifest)
    tree = Tree(Text(label, "bold"), guide_style="dim")
    if line is not None:
        tree.label = Text(f"{label}: ").append_text(line)
    elif isinstance(item, Group):
        if item.kind not in ("dict", "list"):
            tree.label = Text.assemble((label, "bold"), (f"  {item.kind}", "dim"))
        for name, value in item.items[:_MAX_ITEMS]:
            tree.children.append(render(value, name, manifest))
        if len(item.items) > _MAX_ITEMS:
            tree.add(Text(f"… {len(item.items) - _MAX_ITEMS:,} more", "dim"))
    return tree


def _line(item: Item, manifest: Manifest) -> Text | None:
    """Return a value in one line, or None where it takes a branch of the tree."""
    if isinstance(item, LeafRef):
        return _array_line(item, manifest)
    if not isinstance(item, Group):
        return Text(shorten(item))
    arrays = list(_arrays_below(item))
    if None not in arrays:
        found = [array_at(ref, manifest) for ref in arrays if ref is not None]
        size = human(sum(a.nbytes for a in found if a is not None and a.alias is None))
        return Text(f"{plural(len(found), 'array')}, {size}", "dim")
    plain = not any(isinstance(value, Group | LeafRef) for _, value in item.items)
    return Text(shorten(item)) if plain and (not item.keyed or not item.items) else None


def _array_line(ref: LeafRef, manifest: Manifest) -> Text:
    array = array_at(ref, manifest)
    if array is None:
        return Text("an array that is not there", "bold red")
    return Text(f"{array.dtype} {shape_text(array)}", "dim")


def _arrays_below(item: Item) -> Iterator[LeafRef | None]:
    """Yield each array in `item`, and None for whatever is none."""
    if isinstance(item, Group) and item.items:
        for _, value in item.items:
            yield from _arrays_below(value)
    else:
        yield item if isinstance(item, LeafRef) else None
