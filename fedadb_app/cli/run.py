"""`fedadb run`."""

from pathlib import Path
from typing import Annotated

import typer

from fedadb_app.assignments import app_defaults
from fedadb_app.cli.console import fail, one_sentence, out
from fedadb_app.cli.options import AppOption, ConfigOption, CpusOption, GpusOption, SupernodesOption
from fedadb_app.cli.progress import progress_bars, watch
from fedadb_app.cli.values import parse_all, simulation_of
from fedadb_app.flower_run import FlowerRun, checked_values
from fedadb_app.runs.summary import in_words, read_summary


def run(
    run_config: ConfigOption = None,
    num_supernodes: SupernodesOption = None,
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
        effective = {**app_defaults(app), **values}
        simulation = (
            None
            if superlink
            else simulation_of(num_supernodes, client_cpus, client_gpus, effective)
        )
        flower_run = FlowerRun(app, values, simulation, superlink)
        rounds = int(effective["num-server-rounds"])
        with progress_bars() as progress:
            status, details = watch(progress, flower_run, folder, rounds, str(values["run-name"]))
        if status != "finished:completed":
            reason = read_summary(folder).get("reason") or details
            fail(f"the run {status.removeprefix('finished:')}: {reason}; results so far: {folder}")
        if summary := read_summary(folder):  # elsewhere than its SuperLink there is none
            if summary.get("reason"):
                out.print(summary["reason"], soft_wrap=True, markup=False)
            out.print(in_words(summary), soft_wrap=True)
        out.print(f"results: {folder}", soft_wrap=True, markup=False)
