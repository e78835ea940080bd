"""What is said of a model beside its accuracy: MedMNIST's AUC, F1, calibration, per class.

Every number follows from the labels of some images and the class probabilities that a model gives
them. It is not a number (NaN) where it is not defined: a mean over classes is that of all classes
or none.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Probabilities = npt.NDArray[np.float32] | npt.NDArray[np.float64]

BETTER: Mapping[str, int] = {
    "accuracy": 1,
    "balanced-accuracy": 1,
    "macro-f1": 1,
    "auc": 1,
    "ece": -1,
    "brier": -1,
}
"""Metrics of a whole set of images -> 1 where larger is better, -1 where smaller is."""

LARGEST: Mapping[str, float] = {
    "accuracy": 100,
    "balanced-accuracy": 100,
    "macro-f1": 1,
    "auc": 1,
    "ece": 1,
    "brier": 2,
}
"""The same metrics -> the largest value there is; none is below 0."""

BESIDE_ACCURACY = tuple(name for name in BETTER if name != "accuracy")


def missed_rung(rungs: Mapping[int, float], number: int, best: float, better: int) -> int | None:
    """Return the first of some rounds by which a metric has not reached what it had to.

    Parameters
    ----------
    rungs : Mapping[int, float]
        Round -> the value that had to be reached by then.
    number : int
        The round that has ended; later rungs are still to come.
    best : float
        The metric's best value so far; one that is not a number has reached nothing.
    better : int
        As in `BETTER`.
    """
    for rung in sorted(rungs):
        if rung <= number and not better * (best - rungs[rung]) >= 0:
            return rung
    return None


NEED_EVERY_CLASS = ("balanced-accuracy", "macro-f1", "auc")
"""Means over classes."""

PER_CLASS = ("sensitivity", "specificity")

CALIBRATION_BINS = 15
"""Of equal width, as in Guo et al., "On Calibration of Modern Neural Networks", ICML 2017."""


@dataclass(frozen=True)
class Metrics:
    """What is said of a model on some images.

    Attributes
    ----------
    confusion : numpy.ndarray
        Images by true class (rows) and predicted class (columns), int64 ``(C, C)``.
    whole : Mapping[str, float]
        Each metric of `BETTER`: accuracies in percent, the others as fractions of 1 (a Brier
        score up to 2).
    per_class : Mapping[str, numpy.ndarray]
        Each metric of `PER_CLASS`, in percent, float64 ``(C,)``.
    """

    confusion: Counts
    whole: Mapping[str, float]
    per_class: Mapping[str, Floats]

    def values(self) -> Iterator[tuple[str, int | None, float]]:
        """Yield name, class label (None: of all images) and value of everything but the counts."""
        for name, value in self.whole.items():
            yield name, None, value
        for name, values in self.per_class.items():
            for label, value in enumerate(values.tolist()):
                yield name, label, value


def metrics_of(labels: Labels, probabilities: Probabilities) -> Metrics:
    """Return all metrics; the predicted class is the most probable one, of equal ones the first.

    Parameters
    ----------
    labels : numpy.ndarray
        int64 ``(N,)``, N >= 1.
    probabilities : numpy.ndarray
        float ``(N, C)``, C >= 2, rows that add up to 1. Of values that are not finite, as a
        diverged model gives them, only the counts can be said.
    """
    confusion = confusion_matrix(labels, probabilities.argmax(axis=1), probabilities.shape[1])
    whole = of_counts(confusion) | {
        "auc": auc(labels, probabilities),
        "ece": expected_calibration_error(labels, probabilities),
        "brier": brier_score(labels, probabilities),
    }
    return Metrics(confusion, whole, per_class_of(confusion))


def confusion_matrix(labels: Labels, predicted: Labels, num_classes: int) -> Counts:
    """Return how many images of each true class (rows) were given each class, int64 ``(C, C)``."""
    pairs = np.bincount(labels * num_classes + predicted, minlength=num_classes**2)
    return pairs.reshape(num_classes, num_classes).astype(np.int64)


def of_counts(confusion: Counts) -> dict[str, float]:
    """Return the metrics that follow from a confusion matrix.

    Accuracy; balanced accuracy, the mean sensitivity of the classes (Brodersen et al., ICPR 2010);
    macro F1, the mean over classes of 2 TP / (2 TP + FP + FN). The two means are not a number where
    a class has no image: without it they would be those of another, easier task.

    Parameters
    ----------
    confusion : numpy.ndarray
        int64 ``(C, C)``, as `confusion_matrix` returns it.
    """
    right, true, given = confusion.diagonal(), confusion.sum(axis=1), confusion.sum(axis=0)
    balanced = f1 = np.nan
    if true.all():
        balanced = 100 * (right / true).mean()
        f1 = (2 * right / (true + given)).mean()
    accuracy = 100 * right.sum() / true.sum()
    return {
        "accuracy": float(accuracy),
        "balanced-accuracy": float(balanced),
        "macro-f1": float(f1),
    }


def per_class_of(confusion: Counts) -> dict[str, Floats]:
    """Return sensitivity and specificity of each class against all others, percent ``(C,)``.

    Sensitivity TP / (TP + FN) is not a number for a class without an image, specificity
    TN / (TN + FP) where all images are of the class.
    """
    right, true, given = confusion.diagonal(), confusion.sum(axis=1), confusion.sum(axis=0)
    others = confusion.sum() - true
    with np.errstate(invalid="ignore"):
        return {
            "sensitivity": 100 * right / true,
            "specificity": 100 * (others - (given - right)) / others,
        }


def auc(labels: Labels, probabilities: Probabilities) -> float:
    """Return the area under the ROC curve as MedMNIST's evaluator has it (Yang et al., 2023).

    For two classes that of class 1; otherwise the mean over classes, each against all others. Not a
    number where a class has no image. By ranks (Mann and Whitney, 1947), ties sharing theirs: the
    share of pairs of an image of the class and another that are in the right order. That is a sixth
    of the time that scikit-learn takes for the curves.
    """
    from scipy.stats import rankdata  # here: the nodes' processes need none of it

    if not np.isfinite(probabilities).all():
        return float("nan")
    is_class = labels[:, None] == np.arange(probabilities.shape[1])
    inside = is_class.sum(axis=0)
    if not inside.all():
        return float("nan")
    ranks = (rankdata(probabilities, axis=0) * is_class).sum(axis=0)
    areas = (ranks - inside * (inside + 1) / 2) / (inside * (len(labels) - inside))
    return float(areas.mean() if len(areas) > 2 else areas[1])


def expected_calibration_error(labels: Labels, probabilities: Probabilities) -> float:
    """Return by how much the top probability and the accuracy differ, a mean over bins.

    Equation 5 of Guo et al. (ICML 2017): images by their top probability in bins ``((m - 1) / M,
    m / M]``; the mean of ``|accuracy - mean top probability|``, weighted by the images in each bin.
    """
    if not np.isfinite(probabilities).all():
        return float("nan")
    top = probabilities.max(axis=1).astype(np.float64)
    right = probabilities.argmax(axis=1) == labels
    bins = np.ceil(top * CALIBRATION_BINS).astype(np.int64)
    return float(np.abs(np.bincount(bins, weights=right - top)).sum() / len(labels))


def brier_score(labels: Labels, probabilities: Probabilities) -> float:
    """Return the squared error of the probabilities, added over classes (Brier, 1950): 0 to 2."""
    if not np.isfinite(probabilities).all():
        return float("nan")
    errors = probabilities.astype(np.float64)
    errors[np.arange(len(labels)), labels] -= 1
    return float((errors**2).sum(axis=1).mean())
