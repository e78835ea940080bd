"""Running what a comparison lacks, one run after another, and keeping its tables up to date."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedadb_app.comparison.differences import write_significance
from fedadb_app.comparison.folder import check_configuration, check_data, is_complete, set_aside
from fedadb_app.comparison.grid import Cell, Grid
from fedadb_app.comparison.plots import plot_classes, plot_curves
from fedadb_app.comparison.readings import Reading, read_run
from fedadb_app.comparison.tables import write_csv, write_markdown
from fedadb_app.errors import DataError
from fedadb_app.flower_run import FlowerError, FlowerRun
from fedadb_app.runs.summary import read_summary


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: what its run says if it counts, or the reason why it does not."""

    cell: Cell
    reading: Reading | None
    reason: str = ""


Watch = Callable[[FlowerRun, Path, Cell], tuple[str, str]]
"""Waits for a run, showing its progress; returns its real status and details."""


def run_comparison(
    folder: Path, grid: Grid, app: Path, reference: str, watch: Watch
) -> Iterator[Outcome]:
    """Run what is missing, as `run_missing`, and write the tables after every run.

    After the last one the pictures are drawn and the tests made, of all that counts.

    Parameters
    ----------
    folder : Path
        Of the comparison, which the caller has opened.
    grid : Grid
        Which runs it consists of.
    app : Path
        Checkout of the app.
    reference : str
        The method that the paired differences are taken against.
    watch : Watch
        Waits for a run.
    """
    readings: list[Reading] = []
    for outcome in run_missing(folder, grid, app, watch):
        if outcome.reading is not None:
            readings.append(outcome.reading)
            write_csv(readings, folder / "comparison.csv")
            write_markdown(readings, reference, folder / "comparison.md")
        yield outcome
    for alpha in grid.alphas:
        of_alpha = [r for r in readings if r.cell.alpha == alpha]
        if of_alpha:
            plot_curves(of_alpha, folder / f"accuracy-alpha{alpha:g}.png")
            plot_classes(of_alpha, folder / f"classes-alpha{alpha:g}.png")
    if readings:
        write_significance(readings, reference, folder)


def run_missing(folder: Path, grid: Grid, app: Path, watch: Watch) -> Iterator[Outcome]:
    """Run the cells that are not complete, yielding each cell's outcome in order.

    A folder that an interrupted run left behind is kept under another name. A run counts only if
    Flower says ``finished:completed`` and its summary says ``completed``; one that was complete
    before, if it is the one that the cell asks for.
    """
    for cell in grid.cells():
        target = folder / "runs" / cell.name
        if is_complete(target):
            yield count(target, grid, cell)
            continue
        set_aside(target)
        own = {**cell.values, "output-dir": str(target.parent), "run-name": cell.name}
        try:
            flower_run = FlowerRun(app, {**grid.values, **own}, grid.simulation)
            status, details = watch(flower_run, target, cell)
        except FlowerError as error:
            yield Outcome(cell, None, str(error))
            continue
        if status == "finished:completed" and is_complete(target):
            yield count(target, grid, cell)
        else:
            reason = read_summary(target).get("reason") or details
            set_aside(target)
            yield Outcome(cell, None, f"{status}: {reason}")


def count(folder: Path, grid: Grid, cell: Cell) -> Outcome:
    """Read a complete run; it counts if it is the one that a cell asks for, and whole."""
    try:
        check_configuration(folder, grid, cell)
        check_data(folder, grid, cell)
        return Outcome(cell, read_run(cell, folder))
    except DataError as error:
        return Outcome(cell, None, str(error))
