"""Running what a table or figure lacks, and writing it from the runs that are complete."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedadb_app.analysis.runs import SavedRun
from fedadb_app.comparison.folder import check_settings, is_complete, open_folder
from fedadb_app.comparison.grid import Grid
from fedadb_app.comparison.readings import Reading
from fedadb_app.comparison.running import Outcome, count
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import DataError
from fedadb_app.reproduction.outputs import Reproduction
from fedadb_app.reproduction.plan import Plan
from fedadb_app.reproduction.tables import Result
from fedadb_app.reproduction.writers import write

RunMissing = Callable[[Path, Grid], Sequence[Outcome]]
"""Runs what a comparison's folder lacks; returns how each of its runs ended."""


@dataclass(frozen=True)
class Reproducer:
    """Writes tables and figures below one folder; a run that several show is run and read once.

    Attributes
    ----------
    folder : Path
        Of all items and their runs.
    run_missing : RunMissing
        Runs a comparison.
    open_run : Callable
        Opens a run's folder.
    """

    folder: Path
    run_missing: RunMissing
    open_run: Callable[[Path], SavedRun]
    _readings: dict[Path, Reading] = field(default_factory=dict)

    def write(self, plan: Plan, complain: Callable[[str], None]) -> Path:
        """Run what an item lacks and write it; return its page.

        Parameters
        ----------
        plan : Plan
            Which item, and its runs.
        complain : Callable
            Is told of each run that does not count, and why.

        Raises
        ------
        FedADBError
            If a folder belongs to other settings, or there is nothing to write the item from.
        OSError
            If a file cannot be written.
        """
        for name, grid in plan.grids.items():  # all before the first run
            check_settings(self.folder / name, grid)
        for name, grid in plan.grids.items():
            self._read(name, grid, complain)
        results = []
        for entry in plan.study.entries:
            runs = self.folder / entry.setting.name / "runs"
            folders = [runs / cell.name for cell in plan.cells(entry)]
            there = [folder for folder in folders if folder in self._readings]
            results.append(Result(entry, [self._readings[folder] for folder in there], there))
        return write(Reproduction(plan.study, results, self.open_run, self.folder, complain))

    def _read(self, name: str, grid: Grid, complain: Callable[[str], None]) -> None:
        """Run what one comparison lacks, and read its runs, unless they have been read."""
        target = self.folder / name
        with open_folder(target, grid):
            cells = {target / "runs" / cell.name: cell for cell in grid.cells()}
            outcomes: Sequence[Outcome] = []
            if not all(is_complete(folder) for folder in cells):
                try:  # before Flower starts a run that must fail
                    open_dataset(
                        str(grid.effective["dataset"]),
                        str(grid.effective["data-dir"]),
                        download=True,
                    )
                except DataError as error:
                    complain(str(error))
                else:
                    outcomes = self.run_missing(target, grid)
            outcomes = outcomes or [
                count(folder, grid, cell)
                for folder, cell in cells.items()
                if folder not in self._readings and is_complete(folder)
            ]
            for outcome in outcomes:
                if outcome.reading is None:  # the others are worth having
                    complain(f"{name}/{outcome.cell.name}: {outcome.reason}")
                else:
                    self._readings[target / "runs" / outcome.cell.name] = outcome.reading
