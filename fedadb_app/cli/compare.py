"""`fedadb compare`."""

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
    names,
    numbers,
    one_sentence,
    out,
    parse_all,
    simulation_of,
)
from fedadb_app.cli.progress import show_comparison
from fedadb_app.comparison.folder import open_folder
from fedadb_app.comparison.grid import checked_grid
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
    reference: Annotated[str, typer.Option(help="Method of the paired differences.")] = next(
        iter(METHODS)
    ),
    app: AppOption = Path(),
) -> None:
    """Run every method with every seed and alpha, one after another, and set them side by side."""
    with one_sentence():
        values = parse_all(run_config)
        simulation = simulation_of(
            num_supernodes, client_cpus, client_gpus, {**app_defaults(app), **values}
        )
        grid = checked_grid(
            app,
            values,
            [m for name in names("--strategies", strategies) for m in _meant(name)],
            numbers("--alphas", alphas, float) if alphas else (),
            numbers("--seeds", seeds, int),
            simulation,
        )
        if reference not in STRATEGIES:
            raise ConfigError(f"--reference {reference}: choose one of {', '.join(STRATEGIES)}")
        folder = output.expanduser().absolute()
        with open_folder(folder, grid):
            outcomes = show_comparison(folder, grid, app, reference)
        out.print(f"tables and pictures: {folder}", soft_wrap=True, markup=False)
        if failed := [outcome for outcome in outcomes if outcome.reading is None]:
            fail(f"{len(failed)} runs failed or cannot be counted; run the same command again")


def _meant(name: str) -> list[str]:
    return list(METHODS) if name == "all" else [name]
