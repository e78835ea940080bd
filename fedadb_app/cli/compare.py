"""`fedadb compare`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedadb_app.assignments import app_defaults
from fedadb_app.cli.common import (
    AppOption,
    ConfigOption,
    CpusOption,
    GpusOption,
    SupernodesOption,
    fail,
    numbers,
    one_sentence,
    out,
    parse_all,
    progress_bars,
    watch,
    words,
)
from fedadb_app.comparison.grid import (
    CELL_KEYS,
    Cell,
    Grid,
    Outcome,
    is_complete,
    open_folder,
    run_missing,
)
from fedadb_app.comparison.plots import plot_classes, plot_curves
from fedadb_app.comparison.tables import Reading, read_run, write_csv, write_markdown
from fedadb_app.config import Scalar
from fedadb_app.errors import ConfigError, DataError
from fedadb_app.flower_run import FlowerRun, Simulation
from strategies.registry import METHODS, read_run_config


def compare(
    output: Annotated[Path, typer.Option(help="Folder of the comparison; continued if it exists.")],
    strategies: Annotated[str, typer.Option(help="Names with commas, or all.")] = "all",
    seeds: Annotated[str, typer.Option(help="Whole numbers with commas.")] = "0",
    alphas: Annotated[
        str, typer.Option(help="Numbers with commas; default: the run-config's.")
    ] = "",
    run_config: ConfigOption = None,
    num_supernodes: SupernodesOption = 2,
    client_cpus: CpusOption = 1,
    client_gpus: GpusOption = 0.0,
    reference: Annotated[str, typer.Option(help="Method of the paired differences.")] = next(
        iter(METHODS)
    ),
    app: AppOption = Path(),
) -> None:
    """Run every method with every seed and alpha, one after another, and set them side by side."""
    with one_sentence():
        simulation = Simulation(num_supernodes, client_cpus, client_gpus)
        grid = read_grid(app, run_config or [], strategies, seeds, alphas, simulation)
        if reference not in METHODS:
            raise ConfigError(f"--reference {reference}: choose one of {', '.join(METHODS)}")
        folder = output.expanduser().absolute()
        with open_folder(folder, grid):
            failed = run_comparison(folder, grid, app, reference)
        out.print(f"tables and pictures: {folder}", soft_wrap=True, markup=False)
        if failed:
            fail(f"{len(failed)} runs failed or cannot be counted; run the same command again")


def read_grid(
    app: Path,
    run_config: list[str],
    strategies: str,
    seeds: str,
    alphas: str,
    simulation: Simulation,
) -> Grid:
    """Check every value of a comparison before its first run.

    Raises
    ------
    ConfigError
        For a value that is not allowed, or a key that the comparison sets itself.
    """
    values = parse_all(run_config)
    if own := [key for key in CELL_KEYS if key in values]:
        raise ConfigError(
            f"{own[0]} is set by the comparison itself: "
            f"use --strategies, --seeds, --alphas and --output"
        )
    defaults = app_defaults(app)
    grid = Grid(
        strategies=tuple(METHODS)
        if strategies == "all"
        else tuple(dict.fromkeys(words(strategies))),
        alphas=tuple(numbers("--alphas", alphas or str(defaults["alpha"]), float)),
        seeds=tuple(numbers("--seeds", seeds, int)),
        values=values,
        defaults=defaults,
        simulation=simulation,
    )
    if not grid.strategies:
        raise ConfigError(f"--strategies {strategies}: expected at least one name")
    check_grid(grid)
    return grid


def check_grid(grid: Grid) -> None:
    """Check the configuration of every run of a comparison.

    Raises
    ------
    ConfigError
        For a value that is not allowed, or if the server would not evaluate.
    """
    for cell in grid.cells():
        own_values: dict[str, Scalar] = {
            "strategy": cell.strategy,
            "alpha": cell.alpha,
            "seed": cell.seed,
        }
        config, _, _ = read_run_config({**grid.effective, **own_values})
        if not config.server_evaluates:
            raise ConfigError(f'evaluate="{config.evaluate}" leaves the server nothing to compare')


def run_comparison(folder: Path, grid: Grid, app: Path, reference: str) -> list[Outcome]:
    """Run what is missing, writing tables and pictures after every run; return the failed cells."""
    cells = list(grid.cells())
    rounds = int(grid.effective["num-server-rounds"])
    readings: list[Reading] = []
    failed: list[Outcome] = []
    with progress_bars() as progress:
        done = sum(is_complete(folder / "runs" / cell.name) for cell in cells)
        overall = progress.add_task(
            f"{done} of {len(cells)} runs", total=len(cells) - done, note=""
        )

        def show(flower_run: FlowerRun, target: Path, cell: Cell) -> tuple[str, str]:
            return watch(progress, flower_run, target, rounds, cell.name, parent=overall)

        for outcome in run_missing(folder, grid, app, show):
            reason = outcome.reason
            if outcome.folder is not None:
                try:
                    readings.append(read_run(outcome.cell, outcome.folder))
                except DataError as error:  # the others are worth having
                    reason = str(error)
            if reason:
                failed.append(Outcome(outcome.cell, None, reason))
                progress.console.print(f"[red]{outcome.cell.name}[/] {escape(reason)}")
                continue
            write_csv(readings, folder / "comparison.csv")
            write_markdown(readings, reference, folder / "comparison.md")
            progress.update(overall, description=f"{len(readings)} of {len(cells)} runs")
    for alpha in grid.alphas:
        of_alpha = [r for r in readings if r.cell.alpha == alpha]
        if of_alpha:
            plot_curves(of_alpha, folder / f"accuracy-alpha{alpha:g}.png")
            plot_classes(of_alpha, folder / f"classes-alpha{alpha:g}.png")
    return failed
