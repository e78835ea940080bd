"""What the commands share: options, errors in one sentence, and the progress of a run."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from fedadb_app.assignments import parse_assignments
from fedadb_app.config import Scalar
from fedadb_app.errors import ConfigError, FedADBError
from fedadb_app.flower_run import FlowerRun
from fedadb_app.runs.reader import accuracy_summary, read_accuracies, read_summary

_COLUMNS = (  # on a narrow screen the name and the bar give way
    TextColumn("{task.description}", table_column=Column(ratio=2, no_wrap=True)),
    BarColumn(None, table_column=Column(ratio=1)),
    TextColumn("{task.percentage:>3.0f} %"),
    TimeRemainingColumn(),
    TextColumn("{task.fields[note]}"),
)
Number = TypeVar("Number", int, float)

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

AppOption = Annotated[Path, typer.Option("--app", help="Checkout of this app.")]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option("--run-config", "-c", help="key=value pairs as for `flwr run`, or a TOML file."),
]
SupernodesOption = Annotated[int, typer.Option("--num-supernodes", min=1, help="Clients K.")]
CpusOption = Annotated[
    int, typer.Option("--client-cpus", min=1, help="CPUs (torch threads) of one client.")
]
GpusOption = Annotated[float, typer.Option("--client-gpus", min=0, help="GPU share of one client.")]


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


def parse_all(texts: list[str]) -> dict[str, Scalar]:
    """Join what several --run-config say; a later one wins."""
    values: dict[str, Scalar] = {}
    for text in texts:
        values |= parse_assignments(text)
    return values


def words(text: str) -> list[str]:
    """Take apart what has commas between."""
    return [word.strip() for word in text.split(",") if word.strip()]


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


def progress_bars() -> Progress:
    """Return the display of a command's runs."""
    # Rich forgets after 30 s how fast a task was, which may be before the first round has ended.
    return Progress(*_COLUMNS, console=err, expand=True, speed_estimate_period=math.inf)


def watch(
    progress: Progress,
    flower_run: FlowerRun,
    folder: Path,
    rounds: int,
    name: str,
    parent: TaskID | None = None,
) -> tuple[str, str]:
    """Show a run's rounds as they end; stop the run when interrupted.

    A `parent` task counts runs; it advances by the share of rounds done.
    """
    task = progress.add_task(name, total=rounds, note="starting")
    before = 0.0 if parent is None else progress.tasks[parent].completed
    begun = False

    def look() -> None:
        nonlocal begun
        accuracies, done = read_accuracies(folder)
        if not begun and read_summary(folder):
            # The time left follows from what comes after this: not from how long Flower took to
            # start, nor from the rounds that a resumed run begins with.
            progress.advance(task, done)
            begun = True
        best = accuracy_summary(accuracies)["best5_accuracy"]
        note = f"accuracy {accuracies[-1]:.2f} %, best five {best:.2f} %" if accuracies else ""
        progress.update(task, completed=done, note=note or "starting")
        if parent is not None:
            progress.update(parent, completed=before + done / rounds)

    try:
        status = flower_run.wait(folder, look)
    except KeyboardInterrupt:
        progress.update(task, note="stopping")
        flower_run.stop()
        raise
    look()
    if parent is not None:
        progress.remove_task(task)
    return status
