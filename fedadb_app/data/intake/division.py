"""Which images are kept from training, so that no patient is on both sides."""

import warnings

import numpy as np
import numpy.typing as npt

from fedadb_app.data.arrays import held_out

_FOLDS = 5


def held_out_patients(
    labels: npt.NDArray[np.int64],
    patients: npt.NDArray[np.int64] | None,
    folds: int = _FOLDS,
) -> npt.NDArray[np.bool_]:
    """Mark samples that are kept from training: about a fold of each class, whole patients.

    Where no patient is known, every fifth image of each class (`held_out`). Otherwise a fold of
    scikit-learn's StratifiedGroupKFold: of those that leave every class a training sample, the
    one whose classes are nearest to its share; none where there is no such fold.

    Parameters
    ----------
    labels : numpy.ndarray
        int64, ``(N,)``.
    patients : numpy.ndarray or None
        int64, ``(N,)``: equal for two images of one patient.
    folds : int
        Of how many folds one is kept, at least 2.

    Returns
    -------
    numpy.ndarray
        bool, ``(N,)``.
    """
    if patients is None:
        return held_out(labels)
    marked = np.zeros(len(labels), np.bool_)
    share = 1 / folds
    folds = min(folds, len(np.unique(patients)))
    if folds < 2:
        return marked
    from sklearn.model_selection import StratifiedGroupKFold

    classes, counts = np.unique(labels, return_counts=True)
    best = np.inf
    # The splitter wants classes of n_splits members; a class of fewer is one without a fold.
    splitter = StratifiedGroupKFold(n_splits=folds)
    if counts.max() < folds:
        splitter = StratifiedGroupKFold(n_splits=max(2, int(counts.max())))
        if counts.max() < 2:
            return marked
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for _, kept in splitter.split(labels, labels, patients):
            shares = np.array([(labels[kept] == c).sum() for c in classes]) / counts
            distance = float(np.abs(shares - share).sum())
            if shares.max() < 1 and len(kept) > 0 and distance < best:
                best = distance
                marked[:] = False
                marked[kept] = True
    return marked
