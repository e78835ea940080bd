"""The progress of a comparison's runs, as a terminal shows it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

from rich.markup import escape

from fedadb_app.cli.progress import progress_bars, watch
from fedadb_app.comparison.folder import is_complete
from fedadb_app.comparison.grid import Cell, Grid
from fedadb_app.comparison.running import Outcome, Watch, run_comparison, run_only
from fedadb_app.flower_run import FlowerRun


def show_comparison(
    folder: Path, grid: Grid, app: Path, reference: str, jobs: int
) -> list[Outcome]:
    """Run what a comparison lacks, showing its progress; return how each run ended."""
    return show_runs(
        folder, grid, lambda watch: run_comparison(folder, grid, app, reference, watch, jobs)
    )


def show_runs(folder: Path, grid: Grid, run: Callable[[Watch], Iterator[Outcome]]) -> list[Outcome]:
    """Run all cells of a grid, showing their progress; return how each one ended."""
    cells = list(grid.cells())
    outcomes: list[Outcome] = []
    counted = 0
    with progress_bars() as progress:
        done = sum(is_complete(folder / "runs" / cell.name) for cell in cells)
        overall = progress.add_task(
            f"{done} of {len(cells)} runs", total=len(cells) - done, note=""
        )

        def show(run: FlowerRun, target: Path, cell: Cell, stop: Event) -> tuple[str, str]:
            return watch(progress, run, target, grid.rounds(cell), cell.name, overall, stop)

        for outcome in run(show):
            outcomes.append(outcome)
            if outcome.reading is None:
                progress.console.print(f"[red]{outcome.cell.name}[/] {escape(outcome.reason)}")
                continue
            counted += 1
            progress.update(overall, description=f"{counted} of {len(cells)} runs")
    return outcomes


def show_cell(folder: Path, grid: Grid, cell: Cell, app: Path) -> Outcome:
    """Run one cell of a comparison, showing its progress; return how it ended."""
    with progress_bars() as progress:

        def show(run: FlowerRun, target: Path, cell: Cell, stop: Event) -> tuple[str, str]:
            return watch(progress, run, target, grid.rounds(cell), cell.name, stop=stop)

        outcome = run_only(folder, grid, cell, app, show)
        if outcome.reading is None:
            progress.console.print(f"[red]{cell.name}[/] {escape(outcome.reason)}")
    return outcome
