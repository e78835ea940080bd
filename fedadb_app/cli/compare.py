"""`fedadb compare`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

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
    names,
    numbers,
)
from fedadb_app.cli.values import parse_by_method, simulation_of
from fedadb_app.comparison.estimate import estimates, in_words
from fedadb_app.comparison.folder import check_settings, open_folder
from fedadb_app.comparison.grid import Grid, checked_grid
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
        simulation = simulation_of(
            num_supernodes, client_cpus, client_gpus, {**app_defaults(app), **values}, workers
        )
        simulation.shared_by(jobs)
        grid = checked_grid(
            app,
            values,
            [m for name in names("--strategies", strategies) for m in _meant(name)],
            numbers("--alphas", alphas, float) if alphas else (),
            numbers("--seeds", seeds, int),
            simulation,
            own,
        )
        if reference not in STRATEGIES:
            raise ConfigError(f"--reference {reference}: choose one of {', '.join(STRATEGIES)}")
        folder = output.expanduser().absolute()
        cells = list(grid.cells())
        if cell > len(cells):
            raise ConfigError(f"--cell {cell}: this comparison has {len(cells)} runs")
        if dry_run:
            check_settings(folder, grid)
            _list(folder, grid, jobs)
            return
        if cell:
            open_folder(folder, grid, patience=60).release()
            outcomes = [show_cell(folder, grid, cells[cell - 1], app)]
        else:
            with open_folder(folder, grid):
                outcomes = show_comparison(folder, grid, app, reference, jobs)
            out.print(f"tables and pictures: {folder}", soft_wrap=True, markup=False)
        if failed := [outcome for outcome in outcomes if outcome.reading is None]:
            fail(f"{len(failed)} runs failed or cannot be counted; run the same command again")


def _meant(name: str) -> list[str]:
    return list(METHODS) if name == "all" else [name]


def _list(folder: Path, grid: Grid, jobs: int) -> None:
    table = Table("cell", "run", "state", "estimated")
    plan = estimates(folder, grid)
    for number, planned in enumerate(plan, start=1):
        state = "complete" if planned.complete else "missing"
        table.add_row(str(number), planned.cell.name, state, in_words(planned.seconds))
    out.print(table)
    missing = [planned.seconds for planned in plan if not planned.complete]
    known = [seconds for seconds in missing if seconds is not None]
    total = in_words(sum(known) / min(jobs, len(missing) or 1)) if known else "unknown"
    unknown = len(missing) - len(known)
    out.print(
        f"{len(missing)} of {len(plan)} runs are missing; with {jobs} side by side: {total}"
        + (f", and {unknown} runs of unknown length" if known and unknown else "")
        + (": no run of this comparison is complete yet" if missing and not known else "")
    )
