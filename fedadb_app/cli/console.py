"""What every command prints with, and errors in one sentence; imports little."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from fedadb_app.errors import FedADBError

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


@contextmanager
def one_sentence() -> Iterator[None]:
    """Turn an error a user can cause into one sentence and exit code 1."""
    try:
        yield
    except FedADBError as error:
        fail(str(error))


def fail(sentence: str) -> NoReturn:
    """Print an error and exit with 1."""
    err.print(f"[red]error:[/] {escape(sentence)}", soft_wrap=True)
    raise typer.Exit(1)
