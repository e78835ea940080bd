"""`fedadb reproduce`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedadb_app.analysis.open_run import open_run
from fedadb_app.analysis.runs import SavedRun
from fedadb_app.assignments import app_defaults
from fedadb_app.cli.comparison_progress import show_comparison
from fedadb_app.cli.console import err, fail, one_sentence, out
from fedadb_app.cli.options import (
    AppOption,
    ConfigOption,
    CpusOption,
    GpusOption,
    JobsOption,
    numbers,
    words,
)
from fedadb_app.cli.values import parse_all
from fedadb_app.comparison.grid import Grid
from fedadb_app.comparison.running import Outcome
from fedadb_app.errors import FedADBError
from fedadb_app.reproduction.catalogue import STUDIES, study_of
from fedadb_app.reproduction.cell_config import only_cell_text
from fedadb_app.reproduction.entries import only as only_of
from fedadb_app.reproduction.plan import Plan, plan_of, varied
from fedadb_app.reproduction.settings import Scale


def reproduce(
    items: list[str],  # said in the docstring: click 8.5 shows no help of arguments
    scale: Annotated[
        Scale, typer.Option(help="As in the paper, or sized for two cores.")
    ] = "small",
    only: Annotated[
        str,
        typer.Option(
            help="Data sets, methods, scenarios, alpha=0.05, rows such as beta=0.3, with commas; "
            "others are left out."
        ),
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
    jobs: JobsOption = 1,
    output: Annotated[Path, typer.Option(help="Folder of all items; continued if it exists.")] = (
        Path("~/fedadb-reproduction")
    ),
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print one run as a file for `flwr run`.")
    ] = False,
    app: AppOption = Path(),
) -> None:
    """Run what is missing for tables and figures of the paper; write each beside its numbers.

    ITEMS are table1 to table6, figure2 to figure9, or all.
    """
    with one_sentence():
        values = parse_all(run_config)
        defaults = app_defaults(app)
        chosen = [study_of(item, scale) for item in (STUDIES if "all" in items else items)]
        own_seeds = numbers("--seeds", seeds, int) if seeds else []
        plans = []
        for study in only_of(chosen, words(only)):
            study = varied(study, own_seeds, rounds, values)
            plans.append(plan_of(study, values, defaults, client_cpus, client_gpus))
            for grid in plans[-1].grids.values():  # every run before the first
                grid.check()
                grid.simulation.shared_by(jobs)
        if print_config:
            typer.echo(only_cell_text(plans), nl=False)
            return
        folder = output.expanduser().absolute() / scale
        problems = _write(plans, folder, app, jobs)
        if problems:
            fail(f"{problems} problems, named above; what could be written is in {folder}")


def _write(plans: Sequence[Plan], folder: Path, app: Path, jobs: int) -> int:
    """Run what is missing and write every item; return how many problems there were, each said."""
    from fedadb_app.reproduction.reproducer import Reproducer  # so that other commands start sooner

    def run(target: Path, grid: Grid) -> Sequence[Outcome]:
        return show_comparison(target, grid, app, grid.strategies[0], jobs)

    problems = dict[tuple[str, str], None]()
    data_dir = str(next(iter(plans[0].grids.values())).effective["data-dir"])  # the same for all

    def open_here(run_folder: Path) -> SavedRun:  # its data may lie elsewhere by now
        return open_run(run_folder, Path(data_dir) if data_dir else None)

    reproducer = Reproducer(folder, run, open_here)
    for plan in plans:
        study = plan.study

        def complain(text: str, item: str = study.item) -> None:
            if (item, text) not in problems:  # the same data set may be missing several times
                problems[item, text] = None
                err.print(f"[red]{item}:[/] {escape(text)}", soft_wrap=True)

        runs = sum(len(list(grid.cells())) for grid in plan.grids.values())
        summary = f"{study.item}: {study.title}; {runs} runs. {study.differences}"
        out.print(summary, soft_wrap=True, markup=False)
        try:
            page = reproducer.write(plan, complain)
        except (FedADBError, OSError) as error:  # the other items are worth having
            complain(str(error))
        else:
            out.print(f"{page}", soft_wrap=True, markup=False)
    return len(problems)
