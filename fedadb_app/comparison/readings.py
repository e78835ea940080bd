"""What the complete runs of a comparison say, each read from its folder."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedadb_app.analysis.convergence import Curve, forgetting
from fedadb_app.comparison.grid import Cell
from fedadb_app.errors import DataError
from fedadb_app.metrics import BETTER
from fedadb_app.runs.reader import RunFiles, read_files
from fedadb_app.runs.tables import SECONDS


@dataclass(frozen=True)
class Reading:
    """What one complete run says.

    Attributes
    ----------
    cell : Cell
        Which run.
    rounds : tuple[int, ...]
        Evaluated rounds.
    accuracies : tuple[float, ...]
        Percent, one per evaluated round.
    class_accuracy : numpy.ndarray
        Percent, ``(evaluated rounds, C)``; without rows if that file cannot be read.
    best5, final, last50 : float
        Percent, from the run's summary.
    seconds_per_round, megabytes_per_round : float
        Means over all rounds; megabytes (10^6) in both directions.
    failures : int
        Clients' failures over the run.
    ended_early : bool
        Whether ``patience`` ran out before the last round.
    chosen : bool
        Whether validation chose a round.
    reported_round : int
        The round that it chose, or else the last evaluated one.
    reported : Mapping[str, float]
        Each metric of the test part in that round; not a number where it is not known.
    """

    cell: Cell
    rounds: tuple[int, ...]
    accuracies: tuple[float, ...]
    class_accuracy: npt.NDArray[np.float64]
    best5: float
    final: float
    last50: float
    seconds_per_round: float
    megabytes_per_round: float
    failures: int
    ended_early: bool
    chosen: bool
    reported_round: int
    reported: Mapping[str, float]

    @property
    def reported_accuracy(self) -> float:
        """Percent, in the reported round, as ``rounds.csv`` has it."""
        return self.accuracies[self.rounds.index(self.reported_round)]

    @property
    def forgetting(self) -> float:
        """Mean drop of per-class accuracy from its running best, percentage points."""
        return forgetting(self.class_accuracy)


def read_run(cell: Cell, folder: Path) -> Reading:
    """Read a complete run's folder.

    Raises
    ------
    DataError
        If a table is not there, is damaged, or lacks a round.
    """
    try:
        files = read_files(folder)
        if fault := files.faults.get("class_accuracy.csv"):
            raise DataError(fault)
        if files.class_accuracy is None:
            raise DataError(f"{folder / 'class_accuracy.csv'} is not there")
        return reading_of(cell, files)
    except DataError as error:
        raise DataError(f"{error}; remove {folder}, and it is run again") from error


def reading_of(cell: Cell, files: RunFiles) -> Reading:
    """Return what a complete run's files say, whatever is wrong with its accuracy per class.

    Raises
    ------
    DataError
        If ``rounds.csv`` lacks a round, or none was evaluated.
    """
    if fault := files.faults.get("rounds.csv"):
        raise DataError(fault)
    table, classes = files.rounds, files.class_accuracy
    rounds, accuracies = table.known("accuracy")
    if not len(rounds):
        raise DataError(f"{files.folder / 'rounds.csv'} holds no accuracy")
    reported_round = files.chosen_round or int(rounds[-1])
    seconds = sum(table.numbers(column) for column in SECONDS)
    traffic = table.numbers("bytes_down") + table.numbers("bytes_up")
    return Reading(
        cell=cell,
        rounds=tuple(int(t) for t in rounds),
        accuracies=tuple(accuracies.tolist()),
        class_accuracy=np.empty((0, 0)) if classes is None else classes.per_class(),
        best5=float(files.summary["best5_accuracy"]),
        final=float(files.summary["final_accuracy"]),
        last50=float(files.summary["last50_accuracy"]),
        seconds_per_round=float(np.mean(seconds)),
        megabytes_per_round=float(np.mean(traffic)) / 1e6,
        failures=table.total("failures"),
        ended_early="reason" in files.summary,
        chosen=files.chosen_round > 0,
        reported_round=reported_round,
        reported={m: files.metric("test", m).get(reported_round, math.nan) for m in BETTER},
    )


def mean_curve(readings: Sequence[Reading]) -> Curve:
    """Return the evaluated rounds and the accuracy averaged over seeds.

    Where ``patience`` has ended some of them early, as far as the shortest one goes.

    Raises
    ------
    DataError
        If these were not evaluated in the same rounds.
    """
    whole, shortest = readings[0].rounds, min(readings, key=lambda r: len(r.rounds))
    rounds = shortest.rounds if shortest.ended_early else whole
    for r in readings:
        if (r.rounds[: len(rounds)] if shortest.ended_early else r.rounds) != rounds:
            raise DataError(
                f"{readings[0].cell.name} was evaluated {len(rounds)} times, the last in round "
                f"{rounds[-1]}, but {r.cell.name} {len(r.rounds)} times, in round {r.rounds[-1]}: "
                f"they have no mean"
            )
    return rounds, np.mean([r.accuracies[: len(rounds)] for r in readings], axis=0).tolist()
