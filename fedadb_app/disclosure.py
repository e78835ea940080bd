"""Which counts per class a node may tell: none below a least cell, told or derived.

The rule of statistical offices (a threshold, and complementary suppression), on the classes of a
node's held-out images, which are known to the server all together.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedadb_app.refusals import UnusableReplyError

LEAST_CELL = 10
"""Images."""

WITHHELD = -1

Counts = npt.NDArray[np.int64]


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
    lists = [x for x in told if isinstance(x, list) and len(x) == num_classes]
    if len(lists) < 2 or not all(type(n) is int and n >= WITHHELD for x in lists for n in x):
        raise UnusableReplyError(f"its counts per class are not {num_classes} whole numbers")
    images, right = lists
    if sum(n for n in images if n > 0) > num_samples or any(
        r > n for n, r in zip(images, right, strict=True)
    ):
        raise UnusableReplyError(f"its counts per class are more than its {num_samples} samples")
    return images, right


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
