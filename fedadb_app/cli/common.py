"""What the commands share: options, and errors in one sentence."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

from fedadb_app.assignments import parse_assignments
from fedadb_app.config import Scalar
from fedadb_app.errors import ConfigError, FedADBError
from fedadb_app.flower_run import Simulation

Number = TypeVar("Number", int, float)

_FOR_ONE = re.compile(r"\s*([\w-]+):\s+(.+)", re.DOTALL)

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

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


def parse_all(texts: list[str] | None) -> dict[str, Scalar]:
    """Join what several --run-config say; a later one wins."""
    values: dict[str, Scalar] = {}
    for text in texts or []:
        values |= parse_assignments(text)
    return values


def parse_by_method(
    texts: list[str] | None,
) -> tuple[dict[str, Scalar], dict[str, dict[str, Scalar]]]:
    """Join what several --run-config say to all methods, and what to one: ``fedsol: key=value``.

    A file says so in a table, ``[methods.fedsol]``.

    Raises
    ------
    ConfigError
        If an assignment is none.
    """
    shared: dict[str, Scalar] = {}
    own: dict[str, dict[str, Scalar]] = {}
    for text in texts or []:
        method = _FOR_ONE.fullmatch(text)
        if method:
            own.setdefault(method[1], {}).update(parse_assignments(method[2]))
            continue
        for key, value in parse_assignments(text).items():
            if key.startswith("methods."):
                name, _, key = key.removeprefix("methods.").partition(".")
                own.setdefault(name, {})[key] = value
            else:
                shared[key] = value
    return shared, own


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


def simulation_of(
    num_supernodes: int | None,
    client_cpus: int,
    client_gpus: float,
    values: Mapping[str, Scalar],
    workers: int = 0,
) -> Simulation:
    """Return the federation to simulate, with the nodes that a run configuration waits for.

    Raises
    ------
    ConfigError
        If fewer clients are asked for.
    """
    needed = values["min-nodes"]
    if not isinstance(needed, int):  # which is said where the whole configuration is checked
        needed = 1
    if num_supernodes is not None and num_supernodes < needed:
        raise ConfigError(
            f"--num-supernodes {num_supernodes}: the run would wait for more, min-nodes={needed}"
        )
    return Simulation(num_supernodes or max(2, needed), client_cpus, client_gpus, workers)
