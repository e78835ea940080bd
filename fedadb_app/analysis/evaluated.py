"""`fedadb evaluate`: a run's metrics with intervals, at a threshold, and beside another run's."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedadb_app.analysis.significance import mcnemar
from fedadb_app.analysis.uncertainty import Interval, interval, resampled_metrics, resampled_rates
from fedadb_app.errors import ConfigError, DataError
from fedadb_app.metrics import Labels, metrics_of
from fedadb_app.runs.predictions import Predictions, Probabilities
from fedadb_app.runs.reader import read_files
from fedadb_app.runs.record import cell
from fedadb_app.runs.tables import Table
from fedadb_app.thresholds import at_threshold, operating_point

INTERVALS, THRESHOLDS = "intervals.csv", "thresholds.csv"


@dataclass(frozen=True)
class Judged:
    """One of a run's models by what it says of images.

    Attributes
    ----------
    name : str
        ``final``, the last round's, or ``chosen``, that of the round chosen on validation.
    round : int
        Which round.
    test : numpy.ndarray
        Class probabilities of the test part, float32 ``(N, C)``.
    validation : numpy.ndarray or None
        The same of the validation part.
    """

    name: str
    round: int
    test: Probabilities
    validation: Probabilities | None


@dataclass(frozen=True)
class EvaluatedRun:
    """A run whose server has kept what its models say of the test part.

    Attributes
    ----------
    folder : Path
        Of the run.
    predictions : Predictions
        What it kept.
    seed : int
        Of the run, and of the resamples.
    data : str
        Which images; empty where an older run does not say.
    class_names : Sequence[str]
        Index = label.
    """

    folder: Path
    predictions: Predictions
    seed: int
    data: str
    class_names: Sequence[str]

    @property
    def models(self) -> Iterator[Judged]:
        """The last model and, where one was chosen on validation, that one."""
        kept = self.predictions
        yield Judged("final", kept.final_round, kept.final, kept.val_final)
        if kept.chosen is not None:
            yield Judged("chosen", kept.chosen_round, kept.chosen, kept.val_chosen)

    @property
    def units(self) -> str:
        """What resamples draw."""
        images, groups = len(self.predictions.labels), self.predictions.groups
        if groups is None:
            return f"{images} images"
        return f"{len(np.unique(groups))} patients with {images} images"

    def named(self, label: int | None) -> str:
        """Return a class's name; nothing where there is no class."""
        return "" if label is None else self.class_names[label]


def open_evaluated(folder: Path) -> EvaluatedRun:
    """Read a run's folder.

    Raises
    ------
    DataError
        If it holds no run, or the run has kept no predictions, or they are damaged.
    """
    files = read_files(folder)
    predictions = Predictions.read(folder)
    if predictions is None:
        raise DataError(
            f"{folder} has no predictions.npz: a run writes it when it ends, if its server "
            f"evaluates; its nodes' images never leave them"
        )
    seed, data = int(files.summary.get("seed", 0)), str(files.summary.get("data", ""))
    names = files.class_names or [f"class {c}" for c in range(predictions.final.shape[1])]
    if len(names) != predictions.final.shape[1]:
        raise DataError(
            f"{folder}: predictions.npz has {predictions.final.shape[1]} classes, the run "
            f"{len(names)}"
        )
    return EvaluatedRun(folder, predictions, seed, data, names)


def intervals(run: EvaluatedRun) -> Table:
    """Return every metric of the run's models with its 95 % interval.

    Raises
    ------
    DataError
        If there are not two images, or two patients.
    """
    kept = run.predictions
    rows = []
    for model in run.models:
        resampled = resampled_metrics(kept.labels, model.test, kept.groups, run.seed)
        for name, label, value in metrics_of(kept.labels, model.test).values():
            found = interval(resampled[name, label])
            cells = [model.name, str(model.round), name, run.named(label), cell("", value)]
            rows.append([*cells, *_cells(found)])
    header = ["model", "round", "metric", "class", "value", "low", "high", "resamples"]
    return Table(header, rows)


def thresholds(run: EvaluatedRun, sensitivity: float) -> Table:
    """Return the threshold of each model for two classes, and what it does on the test part.

    It is chosen on the validation part. The intervals are those of the test part alone: they take
    the threshold for given.

    Parameters
    ----------
    run : EvaluatedRun
        Of two classes, with a validation part.
    sensitivity : float
        That the threshold has on the validation part, at least.

    Raises
    ------
    ConfigError
        If the run has no such threshold, or `sensitivity` is none.
    DataError
        If a part lacks a class.
    """
    kept = run.predictions
    if len(run.class_names) != 2:
        raise ConfigError(
            f"--sensitivity: {run.folder} tells {len(run.class_names)} classes apart, and a "
            f"threshold is one between two"
        )
    if kept.val_labels is None:
        raise ConfigError(
            f"--sensitivity: {run.folder} has no validation part to choose a threshold on: run it "
            f'with validation="official" or a fraction'
        )
    rows = []
    for model in run.models:
        if model.validation is None:
            continue
        chosen = operating_point(kept.val_labels, model.validation[:, 1], sensitivity)
        called = model.test[:, 1] >= chosen.threshold
        on_test = at_threshold(kept.labels, model.test[:, 1], chosen.threshold)
        rates = resampled_rates(kept.labels, called, kept.groups, run.seed)
        for name, values in zip(("sensitivity", "specificity"), rates, strict=True):
            percent = [100 * getattr(point, name) for point in (chosen, on_test)]
            rows.append(
                [model.name, str(model.round), cell("", sensitivity), repr(chosen.threshold), name]
                + [cell("", value) for value in percent]
                + _cells(interval(100 * values))
            )
    header = ["model", "round", "asked", "threshold", "metric", "validation", "test"]
    return Table([*header, "low", "high", "resamples"], rows)


def differences(run: EvaluatedRun, other: EvaluatedRun) -> Table:
    """Return how much larger each metric of a run is than another's, in the same resamples.

    Raises
    ------
    DataError
        If the two do not have the same test images.
    """
    rows = []
    for mine, theirs in _pairs(run, other):
        kept = run.predictions
        here, there = (
            resampled_metrics(kept.labels, model.test, kept.groups, run.seed)
            for model in (mine, theirs)
        )
        values = [metrics_of(kept.labels, model.test).values() for model in (mine, theirs)]
        for (name, label, value), (_, _, of_other) in zip(*values, strict=True):
            found = interval(here[name, label] - there[name, label])
            rows.append(
                [mine.name, name, run.named(label)]
                + [cell("", v) for v in (value, of_other, value - of_other)]
                + _cells(found)
            )
    header = ["model", "metric", "class", "value", "other", "difference"]
    return Table([*header, "low", "high", "resamples"], rows)


def mcnemar_tests(run: EvaluatedRun, other: EvaluatedRun) -> Table:
    """Return on how many test images only the one or only the other is right, and McNemar's p.

    Raises
    ------
    DataError
        If the two do not have the same test images.
    """
    labels = run.predictions.labels
    rows = []
    for mine, theirs in _pairs(run, other):
        found = mcnemar(_right(labels, mine), _right(labels, theirs))
        counts = [str(found.only_first), str(found.only_second)]
        rounds = [str(mine.round), str(theirs.round)]
        rows.append([mine.name, *rounds, *counts, cell("", found.p_value)])
    header = ["model", "round", "other_round", "only_this_right", "only_other_right", "p"]
    return Table(header, rows)


def _pairs(run: EvaluatedRun, other: EvaluatedRun) -> list[tuple[Judged, Judged]]:
    """Return the two runs' models of the same name."""
    mine, theirs = run.predictions.labels, other.predictions.labels
    same = np.array_equal(mine, theirs) and list(run.class_names) == list(other.class_names)
    if not same or (run.data and other.data and run.data != other.data):
        raise DataError(
            f"{run.folder} and {other.folder} were not evaluated on the same test images: they "
            f"cannot be compared image by image"
        )
    of_other = {model.name: model for model in other.models}
    return [(model, of_other[model.name]) for model in run.models if model.name in of_other]


def _right(labels: Labels, model: Judged) -> npt.NDArray[np.bool_]:
    right: npt.NDArray[np.bool_] = model.test.argmax(axis=1) == labels
    return right


def _cells(found: Interval) -> list[str]:
    return [cell("", found.low), cell("", found.high), str(found.defined)]
