"""Two classes: from which probability on a sample counts as positive, chosen by sensitivity."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedadb_app.errors import ConfigError, DataError

Labels = npt.NDArray[np.int64]
Probabilities = npt.NDArray[np.float32] | npt.NDArray[np.float64]


@dataclass(frozen=True)
class OperatingPoint:
    """A threshold, and what it does on the samples that it was looked at on.

    Attributes
    ----------
    threshold : float
        A sample counts as positive if its probability of class 1 is at least this.
    sensitivity, specificity : float
        Share of the samples of class 1 that count as positive, and of those of class 0 that do not;
        NaN without a sample of that class.
    """

    threshold: float
    sensitivity: float
    specificity: float


def operating_point(
    labels: Labels, probabilities: Probabilities, sensitivity: float
) -> OperatingPoint:
    """Return the highest threshold with at least a stated sensitivity.

    Of all such thresholds it has the highest specificity. Choose it on validation images: on the
    images that it is reported on, both numbers would look better than they are.

    Parameters
    ----------
    labels : numpy.ndarray
        0 or 1, int64 ``(N,)``.
    probabilities : numpy.ndarray
        Of class 1, ``(N,)``.
    sensitivity : float
        Above 0, at most 1.

    Raises
    ------
    ConfigError
        If `sensitivity` lies elsewhere.
    DataError
        If no sample is of class 1.
    """
    if not 0 < sensitivity <= 1:
        raise ConfigError(
            f"sensitivity {sensitivity:g}: expected a number above 0 and at most 1, such as 0.95"
        )
    positive = np.sort(probabilities[labels == 1])[::-1]
    if not len(positive):
        raise DataError("no threshold can be chosen: no validation image is of class 1")
    reached = np.arange(1, len(positive) + 1) / len(positive) >= sensitivity
    return at_threshold(labels, probabilities, float(positive[reached.argmax()]))


def at_threshold(labels: Labels, probabilities: Probabilities, threshold: float) -> OperatingPoint:
    """Return what a threshold does; parameters as in `operating_point`."""
    called = probabilities >= threshold
    positive, negative = called[labels == 1], ~called[labels == 0]
    return OperatingPoint(
        threshold,
        float(positive.mean()) if len(positive) else math.nan,
        float(negative.mean()) if len(negative) else math.nan,
    )
