"""`datastates show`: one step, or one array of it."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.table import Table

from datastates.manifest import Manifest
from datastates.provider import LeafRef
from datastates.tier import Entry, Record, StepReader

from .arrays import array_at, arrays_table, arrays_total, as_json, find_array
from .command import json_option, location_argument, step_argument
from .output import (
    emit,
    emit_json,
    fields,
    metrics_text,
    printable,
    shown_path,
    size_text,
    time_text,
)
from .places import Place, find_entry, open_place
from .tensor import show_tensor
from .tree import render
from .values import outline, shorten, to_plain

__all__ = ["show"]


@click.command()
@location_argument
@step_argument
@click.argument("tensor", required=False)
@json_option
def show(location: str, step: str | None, tensor: str | None, to_json: bool) -> None:
    """Show a step, or one array of it.

    Of STEP: what is recorded of it, its arrays, and its Python values.

    Of TENSOR, which is the name of one of the arrays: shape, type, statistics and a histogram. It
    is read and verified for that, through 64 MiB of memory. NaN and infinite values are counted,
    and left out of the rest.
    """
    place = open_place(location)
    if place.entry is not None and tensor is None:
        step, tensor = None, step  # LOCATION is a step, so what follows it is an array
    entry = find_entry(place, step)
    with place.tier.open(entry) as reader:
        if tensor is None:
            _show_step(place, entry, reader, to_json)
        else:
            show_tensor(reader, find_array(reader.manifest(), tensor), to_json)


def _show_step(place: Place, entry: Entry, reader: StepReader, to_json: bool) -> None:
    record, manifest = place.catalog.record(entry), reader.manifest()
    path = place.tier.where(entry)
    if to_json:
        emit_json(asdict(record) | {"path": path} | _contents(manifest))
        return
    tree = render(outline(manifest.skeleton), "state", manifest)
    emit(_header(record, path), arrays_table(manifest), arrays_total(manifest), "", tree)


def _header(record: Record, path: str) -> Table:
    rows = {
        "step": str(record.step),
        "created": f"{time_text(record.created)} UTC",
        "size": size_text(record.nbytes),
        "path": shown_path(path),
    }
    if record.metrics:
        rows["metrics"] = metrics_text(record.metrics)
    for name, value in record.metadata.items():
        text = value if isinstance(value, str) else shorten(outline(value), 200)
        rows[f"metadata {printable(name)}"] = printable(text)
    return fields(rows)


def _contents(manifest: Manifest) -> dict[str, object]:
    def stand_in(ref: LeafRef) -> object:
        array = array_at(ref, manifest)
        return {"array": array.node if array else None}

    arrays = [as_json(array, manifest) for array in manifest.arrays]
    return {"arrays": arrays, "values": to_plain(outline(manifest.skeleton), stand_in)}
