"""`datastates export`: a step as one file that other tools read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from datastates.checkpointer import Checkpointer
from datastates.errors import StorageError, UnknownClassError, UntrustedError, UsageError
from datastates.tier import Entry, Tier

from .command import json_option, location_argument, step_argument
from .formats import Exported, require_safetensors, write_reference, write_safetensors, write_torch
from .output import emit, emit_json, human, note, plural, progress, shown_path
from .places import find_entry, open_place

__all__ = ["export"]

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@location_argument
@step_argument
@click.option("--safetensors", type=_FILE, metavar="FILE", help="Write all tensors, and only them.")
@click.option("--torch", type=_FILE, metavar="FILE", help="Write the state, for torch.load.")
@click.option("--reference", type=_FILE, metavar="FILE", help="Write where all data lie, no data.")
@click.option("--part", metavar="PART", help='Only this part, e.g. "model" or "optim/state".')
@click.option("--trust", is_flag=True, help="Read pickled values too, which may run their code.")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@json_option
def export(
    location: str,
    step: str | None,
    safetensors: Path | None,
    torch: Path | None,
    reference: Path | None,
    part: str | None,
    trust: bool,
    force: bool,
    to_json: bool,
) -> None:
    """Write a step to a safetensors or torch file, or a reference to it for Zarr.

    The file appears whole or not at all. The state is put together in memory, and verified.

    A reference file opens the step, of either layout, in any Zarr with fsspec, without this
    package: zarr.open("reference://", storage_options={"fo": FILE, ...}). It names the step's
    place once, as the template "step".

    In a safetensors file a tensor is called by its path, joined by dots: optim.state.0.exp_avg.
    Tied tensors are written once for each name. With --part, the file is that part alone, and
    names start below it.
    """
    chosen = [file for file in (safetensors, torch, reference) if file is not None]
    if len(chosen) != 1:
        raise click.UsageError("give one of --reference FILE, --safetensors FILE or --torch FILE")
    if reference is not None and part is not None:
        raise click.UsageError("--reference is about the whole step: leave --part out")
    if safetensors is not None:
        require_safetensors()
    (file,) = chosen
    _check_target(file, force)
    place = open_place(location)
    entry = find_entry(place, step)
    state = None if reference is not None else _restore(place.tier, entry, part, trust)
    with _appearing(file) as temporary:
        if reference is not None:
            done = write_reference(place.tier, entry, temporary)
        elif safetensors is not None:
            done = write_safetensors(state, temporary, {"step": str(entry.step)})
        else:
            done = write_torch(state, temporary)
    _report(file, entry, done, to_json)


def _check_target(file: Path, force: bool) -> None:
    if not file.parent.is_dir():
        raise UsageError(f"there is no directory {file.parent}")
    if file.exists() and not file.is_file():
        raise UsageError(f"{file} is no regular file")
    if file.exists() and not force:
        raise UsageError(f"{file} exists already; --force overwrites it")


def _restore(tier: Tier, entry: Entry, part: str | None, trust: bool) -> Any:
    try:
        with progress(f"reading step {entry.step}") as advance:
            state = Checkpointer(tier).restore(
                step=entry.step,
                only=None if part is None else [part],
                device="cpu",
                trust=trust,
                progress=advance,
            )
    except UntrustedError as error:
        raise UsageError(f"{error} (here: --trust)") from error
    except UnknownClassError as error:
        raise UsageError(f"{error}; a --part without it can be exported") from error
    for key in part.split("/") if part is not None else ():
        state = state[key]
    return state


@contextmanager
def _appearing(file: Path) -> Iterator[Path]:
    """Give a path to write to; what lies there becomes `file`, whole and durable, at the end."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        temporary.touch(exist_ok=False)
        mode = temporary.stat().st_mode  # what the umask allows; safetensors would make it private
        yield temporary
        temporary.chmod(mode)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(file)
    except OSError as error:
        raise StorageError(f"cannot write {file}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _report(file: Path, entry: Entry, done: Exported, to_json: bool) -> None:
    nbytes = file.stat().st_size
    if to_json:
        emit_json({"file": str(file), "step": entry.step, "nbytes": nbytes, **asdict(done)})
        return
    found = f"step {entry.step}, {plural(done.tensors, 'tensor')}, {human(nbytes)}"
    emit(f"{shown_path(str(file))}: {found}")
    for name, other in done.tied.items():
        note(f"{name} is tied to {other}: written twice")
    if done.left_out:
        note(f"left out: {plural(done.left_out, 'value')} that are not tensors")
