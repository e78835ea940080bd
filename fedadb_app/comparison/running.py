"""Running what a comparison lacks, some runs side by side, and keeping its tables up to date."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event

from fedadb_app.comparison.differences import write_significance
from fedadb_app.comparison.folder import (
    check_configuration,
    check_data,
    claim,
    is_complete,
    set_aside,
)
from fedadb_app.comparison.grid import Cell, Grid
from fedadb_app.comparison.plots import plot_classes, plot_curves
from fedadb_app.comparison.readings import Reading, read_run
from fedadb_app.comparison.tables import write_csv, write_markdown
from fedadb_app.comparison.tuned import read_trials
from fedadb_app.errors import DataError, FedADBError
from fedadb_app.flower_run import FlowerRun, uninterrupted
from fedadb_app.own_superlink import end_forsaken, own_superlink
from fedadb_app.runs.summary import read_summary


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: what its run says if it counts, or the reason why it does not.

    Attributes
    ----------
    failed : bool
        Whether its run has itself ended as failed in one of its rounds, which is an answer: it
        would end so again. Before the first round, say for want of nodes, it is none.
    """

    cell: Cell
    reading: Reading | None
    reason: str = ""
    failed: bool = False


Watch = Callable[[FlowerRun, Path, Cell, Event], tuple[str, str]]
"""Waits for a run, showing its progress; returns its real status and details.

Stops the run and raises `Stopped` once the event is set.
"""


def run_comparison(
    folder: Path, grid: Grid, app: Path, reference: str, watch: Watch, jobs: int
) -> Iterator[Outcome]:
    """Run what is missing, as `run_missing`, and write the tables after every run.

    After the last one the pictures are drawn and the tests made, of all that counts. The tables
    have the grid's order, whichever run ended first.

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
    jobs : int
        Runs side by side.
    """
    trials = read_trials(folder)
    found: dict[Cell, Reading] = {}
    readings: list[Reading] = []
    for outcome in run_missing(folder, grid, app, watch, jobs):
        if outcome.reading is not None:
            found[outcome.cell] = outcome.reading
            readings = [found[cell] for cell in grid.cells() if cell in found]
            write_csv(readings, folder / "comparison.csv")
            write_markdown(readings, reference, folder / "comparison.md", grid.own, trials)
        yield outcome
    for alpha in grid.alphas:
        of_alpha = [found[c] for c in grid.cells() if c in found and c.alpha == alpha]
        if of_alpha:
            plot_curves(of_alpha, folder / f"accuracy-alpha{alpha:g}.png")
            plot_classes(of_alpha, folder / f"classes-alpha{alpha:g}.png")
    if readings:
        write_significance(readings, reference, folder)


def run_missing(
    folder: Path, grid: Grid, app: Path, watch: Watch, jobs: int = 1
) -> Iterator[Outcome]:
    """Run the cells that are not complete, yielding each cell's outcome as it is known.

    One job uses the SuperLink that ``flwr run`` uses; several have one each, and share the CPUs.
    The runs are begun in the grid's order. A folder that an interrupted run left behind is kept
    under another name. A run counts only if Flower says ``finished:completed`` and its summary
    says ``completed``; one that was complete before, if it is the one that the cell asks for.
    """
    end_forsaken(folder)
    there: list[Cell] = []
    missing: list[Cell] = []
    for cell in grid.cells():
        (there if is_complete(folder / "runs" / cell.name) else missing).append(cell)
    for cell in there:
        yield count(folder / "runs" / cell.name, grid, cell)
    if not missing:
        return
    stop, homes = Event(), SimpleQueue[Path | None]()
    with ExitStack() as stack:
        for job in range(min(jobs, len(missing))):
            log = folder / f"superlink-{job + 1}.log"
            homes.put(stack.enter_context(own_superlink(folder, log)) if jobs > 1 else None)

        @contextmanager
        def borrowed() -> Iterator[Path | None]:
            home = homes.get()
            try:
                yield home
            finally:
                homes.put(home)

        def run(cell: Cell) -> Outcome:
            return run_cell(folder, grid, cell, app, watch, borrowed(), stop, jobs)

        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        futures = [pool.submit(run, cell) for cell in missing]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:  # also what the caller's loop was ended by
            _stop_all(futures, stop)
            raise


def _stop_all(futures: list[Future[Outcome]], stop: Event) -> None:
    """Begin no other run, stop those that go on, and wait for them."""
    stop.set()
    for future in futures:
        future.cancel()
    with uninterrupted():
        for future in futures:
            if not future.cancelled():
                future.exception()


def run_cell(
    folder: Path,
    grid: Grid,
    cell: Cell,
    app: Path,
    watch: Watch,
    superlink: AbstractContextManager[Path | None],
    stop: Event,
    jobs: int = 1,
) -> Outcome:
    """Run one cell and say how it ended.

    Parameters
    ----------
    folder, grid, app, watch, jobs
        As for `run_missing`.
    cell : Cell
        Which.
    superlink : ContextManager
        Gives ``FLWR_HOME`` of the SuperLink that it runs on; None for the user's.
    stop : Event
        Set when the command has been interrupted.
    """
    target = folder / "runs" / cell.name
    values = {**grid.overrides(cell), "output-dir": str(target.parent), "run-name": cell.name}
    try:
        with claim(target):
            end_forsaken(target)
            set_aside(target)
            with superlink as home:
                submitted = FlowerRun(app, values, grid.simulation.shared_by(jobs), home=home)
                status, details = watch(submitted, target, cell, stop)
            if status == "finished:completed" and is_complete(target):
                return count(target, grid, cell)
            summary = read_summary(target)
            reason = summary.get("reason") or details
            set_aside(target)
            begun = summary.get("status") == "failed" and int(summary["rounds"]) > 0
            failed = begun and status == "finished:failed"
            return Outcome(cell, None, f"{status}: {reason}", failed)
    except FedADBError as error:
        return Outcome(cell, None, str(error))


def run_only(folder: Path, grid: Grid, cell: Cell, app: Path, watch: Watch) -> Outcome:
    """Run one cell on a SuperLink of its own, if it is not complete; write no table.

    Calls for other cells may work in the folder at the same time, on this machine or on others.
    """
    target = folder / "runs" / cell.name
    if is_complete(target):
        return count(target, grid, cell)
    superlink = own_superlink(target, target.with_name(f"{cell.name}-superlink.log"))
    return run_cell(folder, grid, cell, app, watch, superlink, Event())


def count(folder: Path, grid: Grid, cell: Cell) -> Outcome:
    """Read a complete run; it counts if it is the one that a cell asks for, and whole."""
    try:
        check_configuration(folder, grid, cell)
        check_data(folder, grid, cell)
        return Outcome(cell, read_run(cell, folder))
    except DataError as error:
        return Outcome(cell, None, str(error))
