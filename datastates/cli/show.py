"""`datastates show`: one step, or one array of it."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.console import RenderableType
from rich.text import Text

from datastates.manifest import Array, Manifest
from datastates.provider import LeafRef
from datastates.tier import Entry, Record, StepReader

from .command import json_option, location_argument, step_argument
from .output import emit, emit_json, human, metrics_text, plural, printable
from .output import shown_path, table, time_text
from .places import Place, find_entry, open_place
from .tensor import chunks_text, find_array, show_tensor
from .tree import render
from .values import outline, shorten, to_plain

__all__ = ["show"]


@click.command()
@location_argument
@step_argument
@click.argument("tensor", required=False)
@json_option
def show(location: str, step: str | None, tensor: str | None, as_json: bool) -> None:
    """Show STEP: what is recorded of it, its arrays, and its Python values.

    With TENSOR, the name of one of the arrays: its shape, type and statistics, for which it is
    read and verified, in 64 MiB of memory. NaN and infinities are counted and otherwise left out.
    """
    place = open_place(location)
    if place.entry is not None and tensor is None:
        step, tensor = None, step  # LOCATION is the step, so what follows is the array
    entry = find_entry(place, step)
    with place.tier.open(entry) as reader:
        if tensor is not None:
            show_tensor(reader, find_array(reader.manifest(), tensor), as_json)
        else:
            _show_step(place, entry, reader, as_json)


def _show_step(place: Place, entry: Entry, reader: StepReader, as_json: bool) -> None:
    record, manifest = place.catalog.record(entry), reader.manifest()
    path = place.tier.where(entry)
    if as_json:
        emit_json({**asdict(record), "path": path, **_as_json(manifest)})
        return
    values = render(outline(manifest.skeleton), "state", manifest)
    emit(_header(record, path), _arrays_table(manifest), _total(manifest), "", values)


def _header(record: Record, path: str) -> RenderableType:
    grid = table("", "")
    grid.show_header, grid.box = False, None
    grid.columns[0].style = "bold"
    grid.add_row("step", str(record.step))
    grid.add_row("created", f"{time_text(record.created)} UTC")
    grid.add_row("size", f"{human(record.nbytes)} ({record.nbytes:,} bytes)")
    grid.add_row("path", shown_path(path))
    if record.metrics:
        grid.add_row("metrics", metrics_text(record.metrics))
    for name, value in record.metadata.items():
        text = value if isinstance(value, str) else shorten(outline(value), 200)
        grid.add_row(printable(name), printable(text))
    return grid


def _arrays_table(manifest: Manifest) -> RenderableType:
    found = table("array", "type", "shape", "size", "chunks", right=("size",))
    for array in manifest.arrays:
        shape = " × ".join(map(str, array.shape)) or "scalar"
        if array.alias is None:
            last = [human(array.nbytes), chunks_text(array)]
        else:
            last = ["", Text(f"→ {manifest.arrays[array.alias.base].node}", "cyan")]
        found.add_row(array.node, array.dtype, shape, *last)
    return found


def _total(manifest: Manifest) -> Text:
    stored = [array for array in manifest.arrays if array.alias is None]
    aliases = len(manifest.arrays) - len(stored)
    text = f"{plural(len(stored), 'array')}, {human(sum(a.nbytes for a in stored))}"
    return Text(text + (f"; {plural(aliases, 'alias')} →" if aliases else ""), "dim")


def _as_json(manifest: Manifest) -> dict[str, object]:
    def stand_in(ref: LeafRef) -> object:
        return {"array": manifest.arrays[ref.index].node if _known(ref, manifest) else None}

    values = to_plain(outline(manifest.skeleton), stand_in)
    arrays = [array_as_json(array, manifest) for array in manifest.arrays]
    return {"arrays": arrays, "values": values}
