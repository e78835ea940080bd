"""`fedadb run` and `fedadb data`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from fedadb_app.assignments import app_defaults
from fedadb_app.cli.common import (
    AppOption,
    ConfigOption,
    CpusOption,
    GpusOption,
    SupernodesOption,
    fail,
    one_sentence,
    out,
    parse_all,
    progress_bars,
    watch,
)
from fedadb_app.config import Scalar
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import ConfigError
from fedadb_app.flower_run import FlowerRun, Simulation
from fedadb_app.runs.reader import read_summary
from strategies.registry import read_run_config


def run(
    run_config: ConfigOption = None,
    num_supernodes: SupernodesOption = 2,
    client_cpus: CpusOption = 1,
    client_gpus: GpusOption = 0.0,
    superlink: Annotated[
        str, typer.Option(help="SuperLink connection with real SuperNodes; not simulated.")
    ] = "",
    app: AppOption = Path(),
) -> None:
    """Run one federation, show its progress, and exit with 1 unless it completed."""
    with one_sentence():
        values = checked_values(app, run_config or [])
        folder = Path(str(values["output-dir"])) / str(values["run-name"])
        simulation = None if superlink else Simulation(num_supernodes, client_cpus, client_gpus)
        flower_run = FlowerRun(app, values, simulation, superlink)
        rounds = int({**app_defaults(app), **values}["num-server-rounds"])
        with progress_bars() as progress:
            status, details = watch(progress, flower_run, folder, rounds, str(values["run-name"]))
        if status != "finished:completed":
            reason = read_summary(folder).get("reason") or details
            fail(f"the run {status.removeprefix('finished:')}: {reason}; results so far: {folder}")
        if summary := read_summary(folder):  # elsewhere than its SuperLink there is none
            out.print(
                f"accuracy: final {summary['final_accuracy']} %, "
                f"best five rounds {summary['best5_accuracy']} %"
            )
        out.print(f"results: {folder}", soft_wrap=True, markup=False)


def data(
    name: Annotated[str, typer.Argument(help="As the run configuration names it.")],
    data_dir: Annotated[str, typer.Option(help="Where files lie or are downloaded to.")] = "",
) -> None:
    """Download (where needed), check and prepare a data set on this machine."""
    with one_sentence():
        dataset = open_dataset(name, data_dir, download=True)
        channels, height, width = dataset.image_shape
        out.print(
            f"{name}: {len(dataset.train_labels)} training and {len(dataset.test_labels)} test "
            f"images of {height}x{width} pixels and {channels} channel(s), "
            f"{dataset.num_classes} classes",
            markup=False,
        )


def checked_values(app: Path, run_config: list[str]) -> dict[str, Scalar]:
    """Parse and check overrides; fill in where the results go, so that they can be watched.

    Raises
    ------
    ConfigError
        As `read_run_config`.
    """
    overrides = parse_all(run_config)
    config, _, _ = read_run_config({**app_defaults(app), **overrides})
    overrides["output-dir"] = str(Path(config.output_dir or "~/fedadb-runs").expanduser())
    overrides["run-name"] = config.run_name or (
        f"{config.strategy}-{Path(config.dataset).stem}-seed{config.seed}-"
        f"{time.strftime('%Y%m%d-%H%M%S')}"
    )
    if config.run_name and (Path(str(overrides["output-dir"])) / config.run_name).exists():
        raise ConfigError(f'run-name="{config.run_name}" already exists in output-dir')
    return overrides
