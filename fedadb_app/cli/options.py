"""Options that several commands have; imports little."""

from pathlib import Path
from typing import Annotated, TypeVar

import typer

from fedadb_app.errors import ConfigError

Number = TypeVar("Number", int, float)

AppOption = Annotated[Path, typer.Option("--app", help="Checkout of this app.")]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option("--run-config", "-c", help="key=value pairs as for `flwr run`, or a TOML file."),
]
SupernodesOption = Annotated[
    int | None,
    typer.Option("--num-supernodes", min=1, help="Clients K; default: min-nodes, at least 2."),
]
CpusOption = Annotated[
    int, typer.Option("--client-cpus", min=1, help="CPUs (torch threads) of one client.")
]
GpusOption = Annotated[float, typer.Option("--client-gpus", min=0, help="GPU share of one client.")]
WorkersOption = Annotated[
    int,
    typer.Option(
        "--workers", min=0, help="Clients of a run that train side by side; 0: as the CPUs allow."
    ),
]
JobsOption = Annotated[
    int, typer.Option("--jobs", min=1, help="Runs side by side, each on its share of the CPUs.")
]


def words(text: str) -> list[str]:
    """Take apart what has commas between."""
    return [word.strip() for word in text.split(",") if word.strip()]


def names(option: str, text: str) -> list[str]:
    """Return each name of an option once.

    Raises
    ------
    ConfigError
        If there is none.
    """
    found = list(dict.fromkeys(words(text)))
    if not found:
        raise ConfigError(f"{option} {text}: expected at least one name")
    return found


def numbers(option: str, text: str, kind: type[Number]) -> list[Number]:
    """Return each number of an option once.

    Raises
    ------
    ConfigError
        If there is none, or something else among them.
    """
    try:
        found = list(dict.fromkeys(kind(word) for word in words(text)))
    except ValueError as error:
        raise ConfigError(f"{option} {text}: expected numbers with commas between") from error
    if not found:
        raise ConfigError(f"{option} {text}: expected at least one number")
    return found
