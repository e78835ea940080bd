"""How far a run's metrics move with the choice of test images: bootstrap intervals.

Percentile intervals (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3).
Where patients are known they are drawn, each with all images: images of one patient are alike, and
drawing them one by one would give intervals that are too narrow.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedadb_app.errors import DataError
from fedadb_app.metrics import CALIBRATION_BINS, Probabilities
from fedadb_app.randomness import numpy_generator

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Name = tuple[str, int | None]
"""A metric's name, and its class if it is one of a class."""

RESAMPLES = 2000
LEVEL = 0.95

_VALUES_AT_ONCE = 2**20  # weights held at a time; no result depends on it


@dataclass(frozen=True)
class Interval:
    """A percentile interval.

    Attributes
    ----------
    low, high : float
        Its ends; NaN where the metric was defined in no resample.
    defined : int
        In how many resamples the metric was defined: one without a sample of some class has no
        number for it, and does not count.
    """

    low: float
    high: float
    defined: int


def interval(values: Floats) -> Interval:
    """Return the 95 % percentile interval of a metric's resampled values, ``(R,)``."""
    known = values[~np.isnan(values)]
    if not len(known):
        return Interval(np.nan, np.nan, 0)
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high), len(known))


def resampled_metrics(
    labels: Integers,
    probabilities: Probabilities,
    groups: Integers | None,
    seed: int,
    resamples: int = RESAMPLES,
) -> Mapping[Name, Floats]:
    """Return each metric of `fedadb_app.metrics.Metrics` in each resample of the test images.

    Of two models with the same images and the same seed the resamples are the same, so that their
    difference in each is one of pairs.

    Parameters
    ----------
    labels : numpy.ndarray
        int64 ``(N,)``.
    probabilities : numpy.ndarray
        float ``(N, C)``.
    groups : numpy.ndarray or None
        The patient of each image, int64 ``(N,)``; None where they are not known.
    seed : int
        Of the resamples.
    resamples : int
        How many, R.

    Returns
    -------
    Mapping[Name, numpy.ndarray]
        float64 ``(R,)`` each; NaN where a resample has no such number.

    Raises
    ------
    DataError
        If there are not two images, or two patients.
    """
    statistics = _Statistics(labels, probabilities)
    parts = [statistics.metrics(w) for w in drawn(len(labels), groups, seed, resamples)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def resampled_rates(
    labels: Integers, called: npt.NDArray[np.bool_], groups: Integers | None, seed: int
) -> tuple[Floats, Floats]:
    """Return sensitivity and specificity in each resample, of two classes at one threshold.

    Parameters
    ----------
    labels : numpy.ndarray
        0 or 1, int64 ``(N,)``.
    called : numpy.ndarray
        Whether a sample counts as positive, bool ``(N,)``.
    groups, seed
        As in `resampled_metrics`.

    Raises
    ------
    DataError
        As `resampled_metrics`.
    """
    # true negatives, false positives, false negatives, true positives
    outcomes = np.eye(4)[2 * labels + called].T
    counts = [outcomes @ weights for weights in drawn(len(labels), groups, seed, RESAMPLES)]
    true_negative, false_positive, false_negative, true_positive = np.concatenate(counts, axis=1)
    return (
        _share(true_positive, true_positive + false_negative),
        _share(true_negative, true_negative + false_positive),
    )


def drawn(count: int, groups: Integers | None, seed: int, resamples: int) -> Iterator[Floats]:
    """Yield how often each image is in each resample, float64 ``(N, R)``, some resamples at a time.

    Raises
    ------
    DataError
        If there are not two images, or two patients.
    """
    members = np.arange(count) if groups is None else np.unique(groups, return_inverse=True)[1]
    units = int(members.max(initial=-1)) + 1
    if units < 2:
        what = "image" if groups is None else "patient"
        raise DataError(f"an interval needs at least two {what}s in the test part, it has {units}")
    rng = numpy_generator(seed, "bootstrap")
    at_once = max(1, _VALUES_AT_ONCE // count)
    for start in range(0, resamples, at_once):
        columns = min(at_once, resamples - start)
        picked = rng.integers(units, size=(columns, units)) + units * np.arange(columns)[:, None]
        times = np.bincount(picked.ravel(), minlength=columns * units).reshape(columns, units)
        yield np.ascontiguousarray(times.T[members], np.float64)


class _Statistics:
    """What the metrics are sums of, image by image; a resample weighs the images.

    Parameters
    ----------
    labels, probabilities : numpy.ndarray
        As in `resampled_metrics`.
    """

    def __init__(self, labels: Integers, probabilities: Probabilities) -> None:
        count, self._classes = probabilities.shape
        self._finite = bool(np.isfinite(probabilities).all())
        p = np.where(np.isfinite(probabilities), probabilities, 0).astype(np.float64)
        images, predicted = np.arange(count), probabilities.argmax(axis=1)
        top, right = p.max(axis=1), predicted == labels
        squares = ((p - np.eye(self._classes)[labels]) ** 2).sum(axis=1)
        # A row for each cell of the confusion matrix, for each bin, and for the squared errors.
        cells = self._classes**2
        bins = cells + np.ceil(top * CALIBRATION_BINS).astype(np.int64)
        rows = np.concatenate(
            [labels * self._classes + predicted, bins, np.full(count, cells + CALIBRATION_BINS + 1)]
        )
        values = np.concatenate([np.ones(count), right - top, squares])
        self._sums = sparse.csr_array((values, (rows, np.tile(images, 3))))
        columns = range(self._classes) if self._classes > 2 else (1,)
        self._rankings = [_Ranking(labels == c, p[:, c]) for c in columns]

    def metrics(self, weights: Floats) -> dict[Name, Floats]:
        """Return each metric, float64 ``(R,)``, with the images weighed, ``(N, R)``."""
        sums, cells = self._sums @ weights, self._classes**2
        confusion = sums[:cells].reshape(self._classes, self._classes, -1)
        total, right = weights.sum(axis=0), np.einsum("iir->ir", confusion)
        true, given = confusion.sum(axis=1), confusion.sum(axis=0)
        sensitivity = _share(right, true)
        specificity = _share(total - true - given + right, total - true)
        f1 = np.where(true > 0, _share(2 * right, true + given), np.nan)
        found: dict[Name, Floats] = {
            ("accuracy", None): 100 * right.sum(axis=0) / total,
            ("balanced-accuracy", None): 100 * sensitivity.mean(axis=0),
            ("macro-f1", None): f1.mean(axis=0),
            ("auc", None): np.mean([ranking.areas(weights) for ranking in self._rankings], axis=0),
            ("ece", None): np.abs(sums[cells:-1]).sum(axis=0) / total,
            ("brier", None): sums[-1] / total,
        }
        # An area over fewer classes would be that of an easier task.
        found["auc", None][~(true > 0).all(axis=0)] = np.nan
        if not self._finite:
            found |= {(name, None): np.full_like(total, np.nan) for name in ("auc", "ece", "brier")}
        for c in range(self._classes):
            found["sensitivity", c] = 100 * sensitivity[c]
            found["specificity", c] = 100 * specificity[c]
        return found


class _Ranking:
    """The area under the ROC curve of one class: how often its images rank above the others'.

    Half of the pairs with equal scores count (Mann and Whitney, 1947).
    """

    def __init__(self, positive: npt.NDArray[np.bool_], scores: Floats) -> None:
        (self._positive,), (others,) = np.nonzero(positive), np.nonzero(~positive)
        self._others = others[np.argsort(scores[others])]
        ranked, own = scores[self._others], scores[self._positive]
        self._below = np.searchsorted(ranked, own, "left")
        self._not_above = np.searchsorted(ranked, own, "right")

    def areas(self, weights: Floats) -> Floats:
        """Return the area, float64 ``(R,)``, with the images weighed, ``(N, R)``."""
        own = weights[self._positive]
        ranked = np.zeros((len(self._others) + 1, weights.shape[1]))
        np.cumsum(weights[self._others], axis=0, out=ranked[1:])
        pairs = np.einsum("pr,pr->r", own, ranked[self._below] + ranked[self._not_above]) / 2
        return _share(pairs, own.sum(axis=0) * ranked[-1])


def _share(part: Floats, whole: Floats) -> Floats:
    """Return a part of a whole; NaN where there is none."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(whole > 0, part / whole, np.nan)
