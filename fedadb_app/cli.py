"""The `fedadb` command: what Flower's own command line lacks."""

import csv
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedadb_app.config import Scalar
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import ConfigError, FedADBError
from fedadb_app.flower import (
    FlowerRun,
    Simulation,
    app_defaults,
    parse_assignments,
    read_summary,
)
from fedadb_app.results import accuracy_summary
from strategies import read_run_config

main = typer.Typer(
    help="Run and compare federated-learning methods on this machine's SuperLink.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_out = Console(highlight=False)
_err = Console(stderr=True, highlight=False)

AppOption = Annotated[Path, typer.Option("--app", help="Checkout of this app.")]
ConfigOption = Annotated[
    str,
    typer.Option("--run-config", "-c", help="key=value pairs as for `flwr run`, or a TOML file."),
]
SupernodesOption = Annotated[int, typer.Option("--num-supernodes", min=1, help="Clients K.")]
CpusOption = Annotated[
    int, typer.Option("--client-cpus", min=1, help="CPUs (torch threads) of one client.")
]
GpusOption = Annotated[float, typer.Option("--client-gpus", min=0, help="GPU share of one client.")]


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Turn an error a user can cause into one sentence and exit code 1."""
    try:
        yield
    except FedADBError as error:
        _fail(str(error))


def _fail(sentence: str) -> NoReturn:
    _err.print(f"[red]error:[/] {sentence}", soft_wrap=True)
    raise typer.Exit(1)


@main.command()
def run(
    run_config: ConfigOption = "",
    num_supernodes: SupernodesOption = 2,
    client_cpus: CpusOption = 1,
    client_gpus: GpusOption = 0.0,
    superlink: Annotated[
        str, typer.Option(help="SuperLink connection with real SuperNodes; not simulated.")
    ] = "",
    app: AppOption = Path(),
) -> None:
    """Run one federation, show its progress, and exit with 1 unless it completed."""
    with _one_sentence():
        values = checked_values(app, run_config)
        folder = Path(str(values["output-dir"])) / str(values["run-name"])
        simulation = None if superlink else Simulation(num_supernodes, client_cpus, client_gpus)
        flower_run = FlowerRun(app, values, simulation, superlink)
        rounds = int({**app_defaults(app), **values}["num-server-rounds"])
        status, details = watch(flower_run, folder, rounds, str(values["run-name"]))
        if status != "finished:completed":
            reason = read_summary(folder).get("reason") or details
            _fail(f"the run {status.removeprefix('finished:')}: {reason}; results so far: {folder}")
        summary = read_summary(folder)
        _out.print(
            f"accuracy: final {summary['final_accuracy']} %, "
            f"best five rounds {summary['best5_accuracy']} %"
        )
        _out.print(f"results: {folder}", soft_wrap=True)


@main.command()
def data(
    name: Annotated[str, typer.Argument(help="digits, a MedMNIST flag, or a path.")],
    data_dir: Annotated[str, typer.Option(help="Where files lie or are downloaded to.")] = "",
) -> None:
    """Download (where needed), check and prepare a data set on this machine."""
    with _one_sentence():
        dataset = open_dataset(name, data_dir, download=True)
        channels, height, width = dataset.image_shape
        _out.print(
            f"{name}: {len(dataset.train_labels)} training and {len(dataset.test_labels)} test "
            f"images of {height}x{width} pixels and {channels} channel(s), "
            f"{dataset.num_classes} classes"
        )


def checked_values(app: Path, run_config: str) -> dict[str, Scalar]:
    """Parse and check overrides; fill in where the results go, so that they can be watched.

    Raises
    ------
    ConfigError
        As `read_run_config`.
    """
    overrides = parse_assignments(run_config)
    config, _, _ = read_run_config({**app_defaults(app), **overrides})
    overrides["output-dir"] = str(Path(config.output_dir or "~/fedadb-runs").expanduser())
    overrides["run-name"] = config.run_name or (
        f"{config.strategy}-{Path(config.dataset).stem}-seed{config.seed}-"
        f"{time.strftime('%Y%m%d-%H%M%S')}"
    )
    if config.run_name and (Path(str(overrides["output-dir"])) / config.run_name).exists():
        raise ConfigError(f'run-name="{config.run_name}" already exists in output-dir')
    return overrides


def watch(flower_run: FlowerRun, folder: Path, rounds: int, name: str) -> tuple[str, str]:
    """Show a run's rounds as they end; stop the run when interrupted."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=_err) as progress:
        task = progress.add_task(name, total=rounds, note="starting")

        def look() -> None:
            accuracies, done = read_accuracies(folder)
            best = accuracy_summary(accuracies)["best5_accuracy"]
            note = f"accuracy {accuracies[-1]:.2f} %, best five {best:.2f} %" if accuracies else ""
            progress.update(task, completed=done, note=note or "starting")

        try:
            status = flower_run.wait(folder, look)
        except KeyboardInterrupt:
            progress.update(task, note="stopping")
            flower_run.stop()
            raise
        look()
        return status


def read_accuracies(folder: Path) -> tuple[list[float], int]:
    """Return the accuracies in ``rounds.csv`` so far, and the number of finished rounds."""
    try:
        with (folder / "rounds.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError:
        return [], 0
    return [float(row["accuracy"]) for row in rows if row["accuracy"]], len(rows)
