"""The validation part: training images that no client trains on, to choose a round by."""

from __future__ import annotations  # the configuration asks this package's registries

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedadb_app.data.intake.division import held_out_patients
from fedadb_app.data.prepared import ImageDataset
from fedadb_app.errors import ConfigError
from fedadb_app.randomness import numpy_generator

if TYPE_CHECKING:
    from fedadb_app.config import RunConfig

Rows = npt.NDArray[np.int64]


def draw_validation(config: RunConfig, dataset: ImageDataset) -> Rows:
    """Return which rows of the training part are kept for validation, int64 ``(V,)``, rising.

    Of a fraction: `draw_fraction` of all of them.

    Raises
    ------
    ConfigError
        If the data set has no official validation part, or so small a fraction of it no image.
    """
    asked, labels = config.validation, dataset.train_labels
    if asked == "merged":
        return np.empty(0, np.int64)
    if asked == "official":
        if not dataset.num_validation:
            raise ConfigError(
                f'validation="official": dataset="{config.dataset}" has no official validation '
                f'part; use a fraction of the training part, as in validation="0.1"'
            )
        return np.arange(len(labels) - dataset.num_validation, len(labels))
    rows = draw_fraction(config, dataset, np.arange(len(labels)))
    if not len(rows):
        raise ConfigError(
            f'validation="{asked}" of the {len(labels)} training images of '
            f'dataset="{config.dataset}" is none: use a larger fraction'
        )
    return rows


def draw_fraction(config: RunConfig, dataset: ImageDataset, rows: Rows) -> Rows:
    """Return which of some rows of the training part are kept for validation, int64, rising.

    Of a fraction f, ``validation``: of each class round(f n) of its n images, drawn by the seed,
    and never all of them. Where patients are known, whole ones: a fold of scikit-learn's
    StratifiedGroupKFold of round(1 / f) folds.

    Parameters
    ----------
    config : RunConfig
        For ``validation`` and the seed.
    dataset : ImageDataset
        For labels and patients.
    rows : numpy.ndarray
        int64 ``(N,)``, rising: those that may be kept.
    """
    share, labels = float(config.validation), dataset.train_labels[rows]
    if dataset.train_patients is not None:
        patients = dataset.train_patients[rows]
        return rows[held_out_patients(labels, patients, folds=round(1 / share))]
    rng = numpy_generator(config.seed, "validation")
    per_class = [np.flatnonzero(labels == c) for c in range(dataset.num_classes)]
    sizes = [max(0, min(round(share * len(of)), len(of) - 1)) for of in per_class]
    drawn = [rng.permutation(of)[:n] for of, n in zip(per_class, sizes, strict=True)]
    kept: Rows = rows[np.sort(np.concatenate(drawn))]
    return kept
