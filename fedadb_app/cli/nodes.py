"""`fedadb superlink` and `fedadb supernode`."""

import os
import sys

import typer

from fedadb_app import flower_processes
from fedadb_app.cli.console import fail


def superlink(context: typer.Context) -> None:
    """Be Flower's SuperLink, fit for ten hospitals; takes the options of `flower-superlink`."""
    become(flower_processes.command(flower_processes.superlink), context.args)


def supernode(context: typer.Context) -> None:
    """Be Flower's SuperNode, without its waits; takes the options of `flower-supernode`."""
    if sys.platform == "win32":
        fail("fedadb supernode forks processes, which Windows cannot: use flower-supernode")
    become(flower_processes.command(flower_processes.supernode), context.args)


def become(command: list[str], options: list[str]) -> None:
    """Replace this process, and with it all that the command line has imported."""
    os.execv(command[0], [*command, *options])
