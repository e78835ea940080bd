"""`fedadb compare`."""

from pathlib import Path
from typing import Annotated

import typer

from fedadb_app.assignments import app_defaults
from fedadb_app.cli.comparison_progress import show_cell, show_comparison
from fedadb_app.cli.console import fail, one_sentence, out
from fedadb_app.cli.options import (
    AppOption,
    ConfigOption,
    CpusOption,
    GpusOption,
    JobsOption,
    SupernodesOption,
    WorkersOption,
    numbers,
)
from fedadb_app.cli.runs import list_runs
from fedadb_app.cli.values import methods_of, parse_by_method, simulation_of
from fedadb_app.comparison.folder import check_settings, open_folder
from fedadb_app.comparison.grid import checked_grid
from fedadb_app.comparison.tuned import read_tuned
from fedadb_app.errors import ConfigError
from strategies.registry import METHODS, STRATEGIES


def compare(
    output: Annotated[Path, typer.Option(help="Folder of the comparison; continued if it exists.")],
    strategies: Annotated[str, typer.Option(help="Names with commas; all = all methods.")] = "all",
    seeds: Annotated[str, typer.Option(help="Whole numbers with commas.")] = "0",
    alphas: Annotated[
        str, typer.Option(help="Numbers with commas; default: the run-config's.")
    ] = "",
    run_config: ConfigOption = None,
    tuned: Annotated[
        Path | None,
        typer.Option(help="File of `fedadb tune`: the values of each method, and how they came."),
    ] = None,
    num_supernodes: SupernodesOption = None,
    client_cpus: CpusOption = 1,
    client_gpus: GpusOption = 0.0,
    workers: WorkersOption = 0,
    jobs: JobsOption = 1,
    cell: Annotated[
        int,
        typer.Option(
            min=0, help="Run only this one of the runs, counted from 1, as --dry-run lists them."
        ),
    ] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs, and how long they may take.")
    ] = False,
    reference: Annotated[str, typer.Option(help="Method of the paired differences.")] = next(
        iter(METHODS)
    ),
    app: AppOption = Path(),
) -> None:
    """Run every method with every seed and alpha, and set them side by side."""
    with one_sentence():
        values, own = parse_by_method(run_config)
        methods = methods_of(strategies)
        chosen = read_tuned(tuned) if tuned else None
        if chosen:
            own = chosen.own(methods, own)
        simulation = simulation_of(
            num_supernodes, client_cpus, client_gpus, {**app_defaults(app), **values}, workers
        )
        simulation.shared_by(jobs)
        grid = checked_grid(
            app,
            values,
            methods,
            numbers("--alphas", alphas, float) if alphas else (),
            numbers("--seeds", seeds, int),
            simulation,
            own,
        )
        if reference not in STRATEGIES:
            raise ConfigError(f"--reference {reference}: choose one of {', '.join(STRATEGIES)}")
        if chosen:
            chosen.check(grid)
        folder = output.expanduser().absolute()
        cells = list(grid.cells())
        if cell > len(cells):
            raise ConfigError(f"--cell {cell}: this comparison has {len(cells)} runs")
        if dry_run:
            check_settings(folder, grid)
            list_runs(folder, grid, jobs)
            return
        if cell:
            open_folder(folder, grid, patience=60).release()
            outcomes = [show_cell(folder, grid, cells[cell - 1], app)]
        else:
            with open_folder(folder, grid):
                if chosen:
                    chosen.keep(folder)
                outcomes = show_comparison(folder, grid, app, reference, jobs)
            out.print(f"tables and pictures: {folder}", soft_wrap=True, markup=False)
        if failed := [outcome for outcome in outcomes if outcome.reading is None]:
            fail(f"{len(failed)} runs failed or cannot be counted; run the same command again")
