"""What a node may tell of its classes, in counts and in metrics: no cell below a least one.

The rule of statistical offices (a threshold, and complementary suppression), on the classes of a
node's held-out images, which are known to the server all together.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from fedadb_app.evaluation import Evaluation
from fedadb_app.metrics import (
    BESIDE_ACCURACY,
    LARGEST,
    auc,
    brier_score,
    expected_calibration_error,
    metrics_of,
)
from fedadb_app.refusals import UnusableReplyError, are_counts, check_value

LEAST_CELL = 10
"""Images."""

WITHHELD = -1

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sharing:
    """What may be told of a node's images.

    Attributes
    ----------
    classes : bool
        Whether the node's own configuration lets it tell what it finds per class.
    public : bool
        Whether the server knows all its labels: it holds a part of a public data set.
    """

    classes: bool = False
    public: bool = False


def disclosed(total: Counts, correct: Counts) -> tuple[list[int], list[int]]:
    """Return images and correctly classified images of each class, as they may leave a node.

    Each count that is told, and each that follows by subtraction from the counts of all images
    together, is of at least `LEAST_CELL` images: of a class, of its images that are right, of those
    that are wrong. What is not told is `WITHHELD`. Which classes are told of follows from the
    images alone, and so is the same in every round.

    Parameters
    ----------
    total, correct : numpy.ndarray
        Images of each class, and those classified correctly, int64 ``(C,)``.
    """
    told = _tellable(total, np.ones(len(total), np.bool_), [total])
    rights = _tellable(total, told, [correct, total - correct])
    return _with_withheld(total, told), _with_withheld(correct, rights)


def check_disclosed(
    told: Sequence[object], num_classes: int, num_samples: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Return what a node tells of its classes, if it can be true.

    Raises
    ------
    UnusableReplyError
        If it is not a whole number per class, of more images than there are, or of more right ones
        than images.
    """
    if len(told) < 2 or not are_counts(told, num_classes, WITHHELD):
        raise UnusableReplyError(f"its counts per class are not {num_classes} whole numbers")
    images, right = cast(Sequence[Sequence[int]], told)
    if sum(n for n in images if n > 0) > num_samples or any(
        r > n for n, r in zip(images, right, strict=True)
    ):
        raise UnusableReplyError(f"its counts per class are more than its {num_samples} samples")
    return images, right


def disclosed_metrics(found: Evaluation, sharing: Sharing) -> dict[str, float]:
    """Return which metrics of a node's images may leave it, those that are defined.

    Of fewer images than `LEAST_CELL` none. Calibration error and Brier score are means over images,
    whatever their classes. An AUC is a share of the pairs of images of two classes: from its
    fraction follows how many there are of each, so it is told where these counts are. Balanced
    accuracy and macro F1 are sums of fractions of right images per class: beside the accuracy they
    give away cells of any size, and are told only of images whose labels are public.

    Parameters
    ----------
    found : Evaluation
        With labels and probabilities.
    sharing : Sharing
        What the node lets be told.
    """
    if found.total.sum() < LEAST_CELL:
        return {}
    images = found.labels, found.probabilities
    if sharing.public:
        whole = metrics_of(*images).whole
        told = {name: whole[name] for name in BESIDE_ACCURACY}
    else:
        told = {"ece": expected_calibration_error(*images), "brier": brier_score(*images)}
        if sharing.classes and found.total.min() >= LEAST_CELL:
            told["auc"] = auc(*images)
    return {name: value for name, value in told.items() if math.isfinite(value)}


def check_disclosed_metrics(told: Mapping[str, object]) -> dict[str, float]:
    """Return the metrics among what a node tells, if they can be true.

    Raises
    ------
    UnusableReplyError
        If one is no number, below 0 or above the largest that there is.
    """
    metrics = {name: check_value(name, told[name]) for name in BESIDE_ACCURACY if name in told}
    for name, value in metrics.items():
        if not 0 <= value <= LARGEST[name]:
            raise UnusableReplyError(f"{name}={value:g} is not between 0 and {LARGEST[name]:g}")
    return metrics


def _tellable(
    total: Counts, allowed: npt.NDArray[np.bool_], cells: Sequence[Counts]
) -> npt.NDArray[np.bool_]:
    told: npt.NDArray[np.bool_] = allowed & (np.min(cells, axis=0) >= LEAST_CELL)
    # The classes that are left out can be subtracted together; a further one hides them.
    while told.any() and not told.all() and min(c[~told].sum() for c in cells) < LEAST_CELL:
        smallest = np.flatnonzero(told)[total[told].argmin()]
        told[smallest] = False
    return told


def _with_withheld(counts: Counts, told: npt.NDArray[np.bool_]) -> list[int]:
    return [int(count) for count in np.where(told, counts, WITHHELD)]
