"""`fedadb run`."""

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
)
from fedadb_app.cli.progress import progress_bars, watch
from fedadb_app.flower_run import FlowerRun, Simulation, checked_values
from fedadb_app.runs.summary import read_summary


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
        values = checked_values(app, parse_all(run_config))
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
