"""What all commands share: their arguments, and how errors become messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from datastates.errors import CorruptError, DatastatesError, StepNotFoundError, StorageError

from .output import printable

__all__ = ["EXIT_CODES", "Commands", "Failure", "json_option", "location_argument", "step_argument"]

DAMAGED, WRONG_USAGE, NOT_FOUND, STORAGE = 1, 2, 3, 4
_INTERRUPTED, _HUNG_UP = 130, 141  # as a shell reports death by SIGINT and SIGPIPE

EXIT_CODES = """\b
Exit codes:
  0  all is well
  1  a checkpoint is damaged
  2  wrong usage
  3  there is no such checkpoint, or no such array in it
  4  the storage failed
"""

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Failure(click.ClickException):
    """Ends the command with a message on stderr and an exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__("\n".join(printable(line) for line in message.splitlines()))
        self.exit_code = exit_code


def _exit_code(error: DatastatesError) -> int:
    if isinstance(error, StepNotFoundError):
        return NOT_FOUND
    if isinstance(error, CorruptError):
        return DAMAGED
    return STORAGE if isinstance(error, StorageError) else WRONG_USAGE


class Commands(click.Group):
    """The group of all commands: the one border where errors are translated."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; no error of the library or the system gets out as a traceback."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _drop_output()
            ctx.exit(_HUNG_UP)
        except KeyboardInterrupt:
            raise Failure("interrupted", _INTERRUPTED) from None
        except DatastatesError as error:
            raise Failure(str(error), _exit_code(error)) from error
        except (OSError, MemoryError) as error:
            raise Failure(str(error) or type(error).__name__, STORAGE) from error


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
    """Give a command the option `--json`, as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout.")(command)
