"""Class anchors among real images, in feature space (paper, section 6, Figures 7 and 8)."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from fedadb_app.analysis.runs import SavedRun
from fedadb_app.anchors import ClassAnchors
from fedadb_app.errors import DataError
from fedadb_app.models.classifier import ImageClassifier
from fedadb_app.randomness import numpy_generator

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

PER_CLASS = 100
"""At most so many real images of each class are shown."""

COMPONENTS = 3
"""Principal components that Figure 8 keeps."""

PERPLEXITY = 30.0
"""Of t-SNE, where there are points enough; the paper names none."""


@dataclass(frozen=True)
class Embedding:
    """Real images and class anchors as points of one space: phi(x), or a projection of it.

    Attributes
    ----------
    real, anchors : numpy.ndarray
        float64, ``(n, d)`` and ``(N, d)``.
    real_labels, anchor_labels : numpy.ndarray
        int64, ``(n,)`` and ``(N,)``.
    class_names : tuple[str, ...]
        Index = label; a class may lack real images.
    """

    real: Floats
    real_labels: Integers
    anchors: Floats
    anchor_labels: Integers
    class_names: tuple[str, ...]

    def rows(self) -> list[dict[str, str | float]]:
        """Return one row per point: ``kind`` (real, anchor), ``class``, and ``x1`` … ``xd``."""
        groups = (
            ("real", self.real_labels, self.real),
            ("anchor", self.anchor_labels, self.anchors),
        )
        return [
            {"kind": kind, "class": self.class_names[label]}
            | {f"x{axis}": float(x) for axis, x in enumerate(point, start=1)}
            for kind, labels, points in groups
            for label, point in zip(labels, points, strict=True)
        ]


@dataclass(frozen=True)
class Correlation:
    """How alike each class's anchor is to each class's real images.

    Attributes
    ----------
    matrix : numpy.ndarray
        Pearson's r, float64 ``(C, C)``: anchors in rows, centres of real images in columns. Not a
        number for a class that has none, or whose vector has no spread.
    class_names : tuple[str, ...]
        Index = label.
    """

    matrix: Floats
    class_names: tuple[str, ...]

    @property
    def own_class(self) -> float:
        """Mean of the diagonal, over what is known."""
        return _mean_of_known(self.matrix.diagonal())

    @property
    def other_classes(self) -> float:
        """Mean off the diagonal, over what is known."""
        return _mean_of_known(self.matrix[~np.eye(len(self.matrix), dtype=bool)])

    def rows(self) -> list[dict[str, str | float]]:
        """Return one row per pair: ``anchor`` and ``centre`` (classes), and ``r``."""
        return [
            {"anchor": anchor, "centre": centre, "r": float(r)}
            for anchor, row in zip(self.class_names, self.matrix, strict=True)
            for centre, r in zip(self.class_names, row, strict=True)
        ]


def features_of(model: ImageClassifier, anchors: ClassAnchors, run: SavedRun) -> Embedding:
    """Return phi of real images and of the anchors.

    The images are test images: no client has trained on them, so where they lie says what the
    model knows of a class, not what it remembers of an image. Which ones depends on the run's seed
    alone, so that all rounds (and methods) show the same. They pass in mixed batches of the
    training size, and the anchors in the batch they were made in: with ``norm="batch-local"``
    features depend on the batch.

    Parameters
    ----------
    model : ImageClassifier
        A global model of the run, in evaluation mode.
    anchors : ClassAnchors
        Made of it, on its device.
    run : SavedRun
        Where the images, their preparation, the seed and the batch size come from.
    """
    data = run.dataset
    rng = numpy_generator(run.config.seed, "embedding")
    chosen = _balanced_sample(data.test_labels, data.num_classes, rng)
    pixels = torch.from_numpy(data.test_images[chosen])
    device = anchors.images.device
    with torch.inference_mode():
        real = torch.cat(
            [
                model.features(run.preparation.normalise(part, device))
                for part in torch.split(pixels, run.config.batch_size)
            ]
        )
        made = model.features(anchors.images)
    return Embedding(
        real.double().cpu().numpy(),
        data.test_labels[chosen],
        made.double().cpu().numpy(),
        anchors.labels.cpu().numpy(),
        data.class_names,
    )


def tsne(features: Embedding, seed: int) -> Embedding:
    """Place real images and anchors together in the plane, neighbours near each other (t-SNE).

    Distances between clusters, and their sizes, mean little, and those of two maps do not compare.
    On one thread: with several, sums come out in another order each time.

    Raises
    ------
    DataError
        If the features are not finite, or all the same.
    """
    points = np.concatenate([features.real, features.anchors])
    _check_spread(points)
    method = TSNE(
        perplexity=min(PERPLEXITY, (len(points) - 1) / 3),
        random_state=int(numpy_generator(seed, "t-sne").integers(2**31)),
    )
    with threadpool_limits(1):
        placed = method.fit_transform(points).astype(np.float64)
    real, anchors = np.split(placed, [len(features.real)])
    return replace(features, real=real, anchors=anchors)


def pca(features: Embedding) -> Embedding:
    """Project on the first three principal components of the real images, anchors likewise.

    Raises
    ------
    DataError
        If there are fewer than three images or features, or these are not finite, or all the same.
    """
    if min(features.real.shape) < COMPONENTS:
        raise DataError(
            f"{COMPONENTS} principal components need as many images and features; there are "
            f"{len(features.real)} images of {features.real.shape[1]} features"
        )
    _check_spread(features.real)
    components = PCA(COMPONENTS, svd_solver="full").fit(features.real)  # it fixes the signs, too
    return replace(
        features,
        real=components.transform(features.real),
        anchors=components.transform(features.anchors),
    )


def correlation(space: Embedding) -> Correlation:
    """Correlate the mean anchor of each class with the mean real image of each class.

    On the three components of `pca` this is the paper's measure, where Pearson's r is one of three
    pairs of numbers: a coarse one. On the features themselves it is one of d pairs. These are taken
    relative to the mean of all real images, as principal components are, since what is common to
    all classes would let any two correlate.
    """
    origin = space.real.mean(axis=0)
    classes = len(space.class_names)
    anchors = _class_means(space.anchors - origin, space.anchor_labels, classes)
    centres = _class_means(space.real - origin, space.real_labels, classes)
    matrix = _standardised(anchors) @ _standardised(centres).T
    return Correlation(matrix.clip(-1, 1), space.class_names)


def _balanced_sample(labels: Integers, num_classes: int, rng: np.random.Generator) -> Integers:
    """Choose positions of at most so many samples of each class, in mixed order."""
    order = rng.permutation(len(labels))
    chosen = [order[labels[order] == c][:PER_CLASS] for c in range(num_classes)]
    return rng.permutation(np.concatenate(chosen))


def _check_spread(points: Floats) -> None:
    if not np.isfinite(points).all() or not np.ptp(points, axis=0).any():
        raise DataError(
            "the model's features are not finite, or the same for all images: there is nothing to "
            "tell classes apart by; choose another round"
        )


def _class_means(points: Floats, labels: Integers, num_classes: int) -> Floats:
    """Return the mean of each class, ``(C, d)``; not a number where it has no point."""
    means = np.full((num_classes, points.shape[1]), np.nan)
    for c in np.unique(labels):
        means[c] = points[labels == c].mean(axis=0)
    return means


def _standardised(vectors: Floats) -> Floats:
    """Take its mean from each row and divide by its norm; a row without spread is not a number."""
    centred = vectors - vectors.mean(axis=1, keepdims=True)
    spread = np.linalg.norm(centred, axis=1, keepdims=True)
    size = np.linalg.norm(vectors, axis=1, keepdims=True)
    # a constant row's mean is rounded, which leaves a spread of about 1e-16
    known = spread > 1e-12 * size
    unknown = np.full_like(centred, np.nan)
    result: Floats = np.divide(centred, spread, out=unknown, where=known)
    return result


def _mean_of_known(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
