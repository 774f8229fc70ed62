"""What all commands share: their arguments, and how errors become messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from datastates.errors import CorruptError, DatastatesError, StepNotFoundError, StorageError

from .output import note

__all__ = [
    "DAMAGED",
    "EXIT_CODES",
    "NOT_FOUND",
    "Commands",
    "NotFoundError",
    "json_option",
    "location_argument",
    "step_argument",
]

DAMAGED, WRONG_USAGE, NOT_FOUND, STORAGE = 1, 2, 3, 4
_INTERRUPTED, _HUNG_UP = 130, 141  # as a shell reports an end by SIGINT and by SIGPIPE

EXIT_CODES = """\b
Exit codes:
  0  all is well
  1  a checkpoint is damaged
  2  wrong usage
  3  there is no such checkpoint, or no such array in it
  4  the storage failed
"""

_Command = TypeVar("_Command", bound=Callable[..., Any])


class NotFoundError(Exception):
    """What a command was asked for is not there."""


_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (NotFoundError, NOT_FOUND),
    (StepNotFoundError, NOT_FOUND),
    (CorruptError, DAMAGED),
    (StorageError, STORAGE),
    (DatastatesError, WRONG_USAGE),
    (OSError, STORAGE),
    (MemoryError, STORAGE),
    (KeyboardInterrupt, _INTERRUPTED),
)
"""The first that fits counts."""


class Commands(click.Group):
    """The group of all commands, and the one border at which errors are translated."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; no error of the library or the system gets out as a traceback."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _drop_output()
            ctx.exit(_HUNG_UP)
        except tuple(kind for kind, _ in _CODES) as error:
            note(f"Error: {str(error) or type(error).__name__}")
            ctx.exit(next(code for kind, code in _CODES if isinstance(error, kind)))


def _drop_output() -> None:
    """Whoever read our output is gone: what is still buffered must not raise again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def location_argument(command: _Command) -> _Command:
    """Give a command its first argument, `location`."""
    return click.argument("location")(command)


def step_argument(command: _Command) -> _Command:
    """Give a command the argument `step`; None stands for the newest."""
    return click.argument("step", required=False)(command)


def json_option(command: _Command) -> _Command:
    """Give a command the option `--json`, as `to_json`."""
    return click.option("--json", "to_json", is_flag=True, help="Write JSON to stdout.")(command)
