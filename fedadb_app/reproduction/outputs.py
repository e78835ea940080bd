"""What a table or figure is written from and to: a page, the numbers as CSV, and pictures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fedadb_app.analysis.runs import SavedRun
from fedadb_app.errors import FedADBError
from fedadb_app.reproduction.entries import Study
from fedadb_app.reproduction.tables import Number, Result, accuracies, write_csv, write_page

T = TypeVar("T")
Found = TypeVar("Found")

OURS = "Each cell: ours (the paper's, the difference)."


@dataclass(frozen=True)
class Reproduction:
    """A study, its complete runs, and where it is written.

    Attributes
    ----------
    study : Study
        Which table or figure.
    results : Sequence[Result]
        Its entries with their complete runs.
    open_run : Callable
        Opens a run's folder.
    folder : Path
        Where to.
    complain : Callable
        Says what is missing; what it has said before, it does not repeat.
    """

    study: Study
    results: Sequence[Result]
    open_run: Callable[[Path], SavedRun]
    folder: Path
    complain: Callable[[str], None]

    def path(self, suffix: str) -> Path:
        """Return the item's file of a kind."""
        return self.folder / f"{self.study.item}{suffix}"

    def page(
        self,
        sections: Mapping[str, Sequence[Number]],
        explained: str,
        pictures: Sequence[Path] = (),
    ) -> None:
        """Write the page and the numbers."""
        runs = {
            (r.entry.setting.name, r.entry.strategy, r.entry.alpha): len(r.readings)
            for r in self.results  # two entries may show the same runs
        }
        wanted, there = len(runs) * len(self.study.seeds), sum(runs.values())
        if there < wanted:
            explained += f" {wanted - there} of {wanted} runs are missing."
        write_csv(self.path(".csv"), sections)
        write_page(self.path(".md"), self.study, sections, explained, pictures)

    @property
    def accuracies(self) -> Sequence[Number]:
        """The mean of the five best rounds of each entry."""
        return accuracies(self.results, len(self.study.seeds))

    @property
    def accuracies_explained(self) -> str:
        """What `accuracies` are, as sentences."""
        shortest = min(len(reading.rounds) for r in self.complete for reading in r.readings)
        best = "five best rounds" if shortest >= 5 else "five best rounds (of all, if it has fewer)"
        return (
            f"Mean of a run's {best}, test accuracy in %, ± sample standard deviation over seeds. "
            f"{OURS}"
        )

    @property
    def complete(self) -> Sequence[Result]:
        """The entries that have a run."""
        return [result for result in self.results if result.readings]

    def run(self, result: Result) -> SavedRun:
        """Open the run of an entry's first seed."""
        return self.open_run(result.folders[0])

    def examine(self, things: Mapping[str, T], find: Callable[[T], Found]) -> Mapping[str, Found]:
        """Return what is found in each thing; say which cannot be examined.

        Raises
        ------
        FedADBError
            If none can.
        """
        found, errors = {}, []
        for name, thing in things.items():
            try:
                found[name] = find(thing)
            except FedADBError as error:  # the others are worth having
                errors.append(error)
                self.complain(str(error))
        if not found:
            raise errors[0]
        return found


def measured(column: str, values: Mapping[str, float]) -> list[Number]:
    """Return numbers of a column, row by row, that the paper does not report."""
    return [Number(row, column, [float(value)], None) for row, value in values.items()]
