"""How commands write: tables for a person, strict JSON for a program, progress to a terminal.

Everything on stdout goes through `emit` or `emit_json`. What a checkpoint holds may come from
anyone, so no text of it is taken for markup, and no control character of it reaches the terminal.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table

__all__ = [
    "Progress",
    "emit",
    "emit_json",
    "fields",
    "human",
    "metrics_text",
    "note",
    "plural",
    "printable",
    "progress",
    "shown_path",
    "size_text",
    "table",
    "time_text",
]

Progress = Callable[[int, int], None]
"""Called with the bytes of a read that has ended, and those of all; from any thread."""

_PIPE_COLUMNS = 10_000  # nothing is folded for a program that reads lines


def printable(text: str) -> str:
    """Return `text` with everything that a terminal might obey written as an escape."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def human(nbytes: int) -> str:
    """Return a number of bytes for a person: 1.53 GiB."""
    size, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if size < 1024 or unit == "PiB":
            break
        size /= 1024
    return (
        f"{nbytes} B"
        if unit == "B"
        else f"{size:.{2 if size < 10 else 1 if size < 100 else 0}f} {unit}"
    )


def size_text(nbytes: int) -> str:
    """Return a number of bytes twice, for a person and exactly: 1.53 GiB (1,642,823,000 bytes)."""
    return human(nbytes) if nbytes < 1024 else f"{human(nbytes)} ({nbytes:,} bytes)"


def plural(count: int, noun: str) -> str:
    """Return `1 step`, `2 steps`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def time_text(created: str) -> str:
    """Return an ISO 8601 time in UTC without its offset: 2026-01-31 17:05:12."""
    return printable(created).replace("T", " ").removesuffix("+00:00")


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Return metrics in one line: loss=2.31 acc=0.9."""
    return " ".join(f"{printable(name)}={value:.6g}" for name, value in metrics.items())


def shown_path(path: str) -> str:
    """Return a path as a person would write it from where they are."""
    here = str(Path.cwd()) + os.sep
    return printable(path.removeprefix(here))


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table in the style of all tables."""
    made = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def fields(rows: Mapping[str, str]) -> Table:
    """Return names and their values below each other."""
    made = table("name", "value")
    made.show_header, made.box = False, None
    made.columns[0].style = "bold"
    for row in rows.items():
        made.add_row(*row)
    return made


def emit(*parts: RenderableType) -> None:
    """Write to stdout; coloured and fitted to the width if that is a terminal."""
    terminal = _is_terminal(sys.stdout)
    width = None if terminal or "COLUMNS" in os.environ else _PIPE_COLUMNS
    text = StringIO()
    console = Console(
        file=text, force_terminal=terminal, width=width, markup=False, emoji=False, highlight=False
    )
    console.print(*parts, sep="\n")
    _write(text.getvalue())


def emit_json(value: object) -> None:
    """Write one JSON document to stdout; numbers that JSON has not become strings, as in Zarr."""
    _write(json.dumps(_strict(value), allow_nan=False, indent=2) + "\n")


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()  # None where a shell has closed it: `>&-`


def _write(text: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "replace").decode(encoding), nl=False)


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value


def note(text: str) -> None:
    """Write a remark to stderr, where it is not in the way of what the command gives."""
    click.echo("\n".join(printable(line) for line in text.splitlines()), err=True)


@contextmanager
def progress(what: str) -> Iterator[Progress]:
    """Show a progress bar on stderr while the body runs, if that is a terminal."""
    if not _is_terminal(sys.stderr):
        yield lambda nbytes, total: None
        return
    from rich import progress as rich  # imported where it is shown

    columns = (
        *(rich.TextColumn("{task.description}", markup=False), rich.BarColumn()),
        *(rich.DownloadColumn(binary_units=True), rich.TransferSpeedColumn()),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda nbytes, total: bar.update(task, advance=nbytes, total=total)
