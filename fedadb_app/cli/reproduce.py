"""`fedadb reproduce`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedadb_app.analysis.open_run import open_run
from fedadb_app.analysis.runs import SavedRun
from fedadb_app.assignments import app_defaults, as_assignments
from fedadb_app.cli.common import (
    AppOption,
    ConfigOption,
    CpusOption,
    GpusOption,
    err,
    fail,
    numbers,
    one_sentence,
    out,
    parse_all,
    words,
)
from fedadb_app.cli.progress import show_comparison
from fedadb_app.comparison.folder import check_settings, is_complete, open_folder
from fedadb_app.comparison.grid import CELL_KEYS, Cell, Grid
from fedadb_app.comparison.readings import Reading
from fedadb_app.comparison.running import count
from fedadb_app.config import Scalar
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import ConfigError, DataError, FedADBError
from fedadb_app.flower_run import Simulation
from fedadb_app.reproduction.studies import STUDIES, Scale, study_of
from fedadb_app.reproduction.study import Comparison, Study
from fedadb_app.reproduction.study import only as only_of
from fedadb_app.reproduction.tables import Result
from fedadb_app.runs.checkpoint import MAY_DIFFER


def reproduce(
    items: list[str],  # said in the docstring: click 8.5 shows no help of arguments
    scale: Annotated[
        Scale, typer.Option(help="As in the paper, or sized for two cores.")
    ] = "small",
    only: Annotated[
        str, typer.Option(help="Data sets, methods, scenarios with commas; others are left out.")
    ] = "",
    seeds: Annotated[
        str, typer.Option(help="Whole numbers with commas; default: the item's.")
    ] = "",
    rounds: Annotated[
        int, typer.Option(min=0, help="Make every run this long, e.g. to try it out; 0: as it is.")
    ] = 0,
    run_config: ConfigOption = None,
    client_cpus: CpusOption = 1,
    client_gpus: GpusOption = 0.0,
    output: Annotated[Path, typer.Option(help="Folder of all items; continued if it exists.")] = (
        Path("~/fedadb-reproduction")
    ),
    app: AppOption = Path(),
) -> None:
    """Run what is missing for tables and figures of the paper; write each beside its numbers.

    ITEMS are table1 to table6, figure2 to figure9, or all.
    """
    with one_sentence():
        folder = output.expanduser().absolute() / scale
        values = parse_all(run_config)
        studies = [study_of(item, scale) for item in (STUDIES if "all" in items else items)]
        studies = [_varied(study, seeds, rounds, values) for study in only_of(studies, words(only))]
        grids = [_grids(study, app, values, client_cpus, client_gpus) for study in studies]
        problems = []
        for study, of_study in zip(studies, grids, strict=True):
            problems += _reproduce(study, of_study, folder, app)
        if problems:
            fail(f"{len(problems)} problems, named above; what could be written is in {folder}")


def _varied(study: Study, seeds: str, rounds: int, values: Mapping[str, Scalar]) -> Study:
    """Return a study with other seeds, rounds and values, which its page names."""
    if seeds:
        study = replace(study, seeds=numbers("--seeds", seeds, int))
    if rounds:
        study = study.in_rounds(rounds)
    if len(study.seeds) != (wanted := len(study_of(study.item, "full").seeds)):
        study = study.otherwise(f"Number of seeds: {len(study.seeds)} instead of {wanted}.")
    other = {key: value for key, value in values.items() if key not in MAY_DIFFER}
    return study.otherwise(f"With {as_assignments(other)}.") if other else study


def _grids(
    study: Study, app: Path, values: Mapping[str, Scalar], client_cpus: int, client_gpus: float
) -> list[tuple[Comparison, Grid]]:
    """Check every run of a study before the first."""
    grids = []
    for comparison in study.comparisons:
        setting = comparison.setting
        if own := [key for key in values if key in {*CELL_KEYS, *setting.values}]:
            raise ConfigError(
                f"{own[0]} is set by {study.item} itself; "
                f"--scale, --only, --seeds, --rounds and --output say what is run"
            )
        grid = Grid(
            strategies=tuple(comparison.strategies),
            alphas=tuple(comparison.alphas),
            seeds=tuple(study.seeds),
            values={**values, **setting.values},
            defaults=app_defaults(app),
            simulation=Simulation(setting.clients, client_cpus, client_gpus),
        )
        grid.check()
        grids.append((comparison, grid))
    return grids


def _reproduce(
    study: Study, grids: Sequence[tuple[Comparison, Grid]], folder: Path, app: Path
) -> list[str]:
    """Run what is missing and write the item; return what went wrong, each said already."""
    from fedadb_app.reproduction.outputs import Reproduction, write  # so that others start sooner

    problems: list[str] = []

    def complain(text: str) -> None:
        if text not in problems:  # the same data set may be missing several times
            problems.append(text)
            err.print(f"[red]{study.item}:[/] {escape(text)}", soft_wrap=True)

    data_dir = str(grids[0][1].effective["data-dir"])

    def open_here(run_folder: Path) -> SavedRun:  # its data may lie elsewhere by now
        return open_run(run_folder, Path(data_dir) if data_dir else None)

    runs = sum(len(list(grid.cells())) for _, grid in grids)
    summary = f"{study.item}: {study.title}; {runs} runs. {study.changed}"
    out.print(summary, soft_wrap=True, markup=False)
    try:
        for comparison, grid in grids:  # all before the first run
            check_settings(folder / comparison.setting.name, grid)
        for comparison, grid in grids:
            target = folder / comparison.setting.name
            with open_folder(target, grid):
                if all(is_complete(target / "runs" / cell.name) for cell in grid.cells()):
                    continue
                try:  # before Flower starts a run that must fail
                    open_dataset(comparison.setting.dataset, data_dir, download=True)
                except DataError as error:
                    complain(str(error))
                    continue
                for outcome in show_comparison(target, grid, app, grid.strategies[0]):
                    complain(f"{comparison.setting.name}/{outcome.cell.name}: {outcome.reason}")
        results = _results(study, grids, folder, complain)
        page = write(Reproduction(study, results, open_here, folder, complain))
    except (FedADBError, OSError) as error:  # the other items are worth having
        complain(str(error))
    else:
        out.print(f"{page}", soft_wrap=True, markup=False)
    return problems


def _results(
    study: Study,
    grids: Sequence[tuple[Comparison, Grid]],
    folder: Path,
    complain: Callable[[str], None],
) -> list[Result]:
    """Return every entry of a study with the runs of it that are complete."""
    grid_of = {comparison.setting.name: grid for comparison, grid in grids}
    results = []
    for entry in study.entries:
        cells = [Cell(entry.strategy, entry.alpha, seed) for seed in study.seeds]
        name = entry.setting.name
        runs = folder / name / "runs"
        found: dict[Path, Reading] = {}
        for cell in cells:
            if is_complete(runs / cell.name):
                outcome = count(runs / cell.name, grid_of[name], cell)
                if outcome.reading is None:  # the others are worth having
                    complain(f"{name}/{cell.name}: {outcome.reason}")
                else:
                    found[runs / cell.name] = outcome.reading
        results.append(Result(entry, list(found.values()), list(found)))
    return results
