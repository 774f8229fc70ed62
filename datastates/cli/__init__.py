"""The command line `datastates`: look at checkpoints, check them, remove them, export them.

One file a command. `command` says how errors become exit codes, `places` what LOCATION and STEP
mean, `output` how things are written; `values` and `stats` look into a step and know no terminal.
"""

from __future__ import annotations

import click

from .command import EXIT_CODES, Commands
from .export import export
from .list import list_steps
from .prune import prune
from .show import show
from .verify import verify

__all__ = ["main"]


@click.group(cls=Commands, epilog=EXIT_CODES)
@click.version_option(package_name="datastates", message="%(prog)s %(version)s")
def main() -> None:
    """Look at checkpoints, check them, remove them, export them.

    \b
    LOCATION  the directory of a run, or the path of one step in it
    STEP      a number, "latest" (the default), "best:METRIC" or "best:METRIC:max"
    """


for command in (list_steps, show, verify, prune, export):
    command.epilog = EXIT_CODES
    main.add_command(command)
