"""How long the missing runs of a comparison may take, from those that are complete."""

import statistics
from dataclasses import dataclass
from pathlib import Path

from fedadb_app.comparison.folder import is_complete
from fedadb_app.comparison.grid import Cell, Grid
from fedadb_app.comparison.readings import read_run
from fedadb_app.errors import DataError


@dataclass(frozen=True)
class Estimate:
    """One run: whether it is complete, and how many seconds of rounds it has or may have.

    Attributes
    ----------
    seconds : float or None
        None if no complete run says how long its rounds take. Flower's start is not in it.
    """

    cell: Cell
    complete: bool
    seconds: float | None


def estimates(folder: Path, grid: Grid) -> list[Estimate]:
    """Return each run of a comparison, in its order.

    A missing run is taken to be as fast, round for round, as the median of its method's complete
    ones; where its method has none, as the median of all.
    """
    complete = {cell: is_complete(folder / "runs" / cell.name) for cell in grid.cells()}
    measured: dict[Cell, float] = {}
    for cell in (cell for cell, done in complete.items() if done):
        try:
            measured[cell] = read_run(cell, folder / "runs" / cell.name).seconds_per_round
        except DataError:  # which a call that runs the comparison names
            continue
    plan = []
    for cell, done in complete.items():
        alike = [s for c, s in measured.items() if c.strategy == cell.strategy]
        usual = statistics.median(alike or measured.values()) if measured else None
        per_round = measured.get(cell, usual)
        seconds = None if per_round is None else per_round * grid.rounds(cell)
        plan.append(Estimate(cell, done, seconds))
    return plan


def in_words(seconds: float | None) -> str:
    """Return a length of time as a person says it: ``40 s``, ``12 min``, ``3 h 5 min``."""
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
