"""What an anchor shows of real images: its PSNR to the nearest (paper, section 6, Figure 9).

A low PSNR says that no training image stands in the anchor as it is, pixel by pixel. Any noise has
one; what else may be learnt from an anchor, or from the model it is made of, it does not bound.
"""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from fedadb_app.analysis.runs import SavedRun
from fedadb_app.analysis.style import shortened
from fedadb_app.anchors import ClassAnchors
from fedadb_app.randomness import numpy_generator

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

REFERENCES = 100
"""Training images that are compared with all others, for reference."""

_VALUES_AT_ONCE = 2**22  # pixel values held as float64; no result depends on it
_COLUMNS = 10  # anchors side by side


@dataclass(frozen=True)
class AnchorPrivacy:
    """Each anchor and the training image nearest to it.

    Attributes
    ----------
    anchors, nearest : numpy.ndarray
        uint8, ``(N, channels, height, width)``.
    labels, nearest_labels, nearest_positions : numpy.ndarray
        int64 ``(N,)``: classes of both, and where in the training set the image is.
    confidences : numpy.ndarray
        Softmax probability of the anchor's class, float64 ``(N,)``.
    psnr : numpy.ndarray
        dB, float64 ``(N,)``; infinite where both are the same.
    real_psnr : numpy.ndarray
        For reference, dB, float64 ``(S,)``: a sample of training images, each to its nearest other.
    class_names : tuple[str, ...]
        Index = label.
    """

    anchors: Pixels
    labels: Integers
    confidences: Floats
    nearest: Pixels
    nearest_labels: Integers
    nearest_positions: Integers
    psnr: Floats
    real_psnr: Floats
    class_names: tuple[str, ...]

    @property
    def median_real_psnr(self) -> float:
        """What is usual between a real image and its nearest other, dB."""
        return float(np.median(self.real_psnr))

    def rows(self) -> list[dict[str, str | float]]:
        """Return one row per anchor."""
        return [
            {
                "class": self.class_names[self.labels[i]],
                "confidence": float(self.confidences[i]),
                "psnr": float(self.psnr[i]),
                "nearest_image": int(self.nearest_positions[i]),
                "nearest_class": self.class_names[self.nearest_labels[i]],
            }
            for i in range(len(self.labels))
        ]


def anchor_privacy(anchors: ClassAnchors, run: SavedRun) -> AnchorPrivacy:
    """Compare each anchor, as the picture it is, with every image of the run's training set.

    Parameters
    ----------
    anchors : ClassAnchors
        Of a round of the run.
    run : SavedRun
        Where the images and their preparation come from, and the seed of the references.
    """
    data = run.dataset
    images = data.train_images
    pixels = run.preparation.to_pixels(anchors.images.cpu()).numpy()
    rng = numpy_generator(run.config.seed, "anchor-privacy")
    chosen = rng.choice(len(images), min(REFERENCES, len(images)), replace=False)
    positions, psnr = nearest_images(
        np.concatenate([pixels, images[chosen]]),
        images,
        excluded=np.concatenate([np.full(len(pixels), -1), chosen]),
    )
    count = len(pixels)
    return AnchorPrivacy(
        anchors=pixels,
        labels=anchors.labels.cpu().numpy(),
        confidences=anchors.confidences.double().cpu().numpy(),
        nearest=images[positions[:count]],
        nearest_labels=data.train_labels[positions[:count]],
        nearest_positions=positions[:count],
        psnr=psnr[:count],
        real_psnr=psnr[count:],
        class_names=data.class_names,
    )


def nearest_images(queries: Pixels, images: Pixels, excluded: Integers) -> tuple[Integers, Floats]:
    """Find, for each picture, the image of least mean squared error, and its PSNR.

    PSNR = 10 log10(255^2 / MSE). Exact: squared errors are whole numbers below 2^53.

    Parameters
    ----------
    queries, images : numpy.ndarray
        uint8, ``(Q, channels, height, width)`` and ``(n, channels, height, width)``, n > 1.
    excluded : numpy.ndarray
        A position in `images` that does not count, int64 ``(Q,)``; -1 for none.

    Returns
    -------
    tuple[numpy.ndarray, numpy.ndarray]
        Positions, int64 ``(Q,)``, the first of several that are equally near; PSNR in dB, float64
        ``(Q,)``, infinite for the same image.
    """
    wanted = queries.reshape(len(queries), -1).astype(np.float64)
    squares = np.square(wanted).sum(axis=1, keepdims=True)
    size = max(1, _VALUES_AT_ONCE // wanted.shape[1])
    positions = np.zeros(len(wanted), np.int64)
    least = np.full(len(wanted), np.inf)
    every = np.arange(len(wanted))
    for start in range(0, len(images), size):
        part = images[start : start + size].reshape(-1, wanted.shape[1]).astype(np.float64)
        # ||a - b||^2 = ||a||^2 - 2 a b + ||b||^2
        errors = squares - 2 * wanted @ part.T + np.einsum("ij,ij->i", part, part)
        (inside,) = np.nonzero((start <= excluded) & (excluded < start + len(part)))
        errors[inside, excluded[inside] - start] = np.inf
        closest = errors.argmin(axis=1)
        nearer = errors[every, closest] < least
        positions[nearer] = start + closest[nearer]
        least[nearer] = errors[every, closest][nearer]
    with np.errstate(divide="ignore"):
        return positions, 10 * np.log10(255**2 * wanted.shape[1] / least)


# --- picture --------------------------------------------------------------------------------


def plot_anchors(groups: Mapping[str, AnchorPrivacy], path: Path) -> None:
    """Draw Figure 9: for each data set the anchors, and under each the real image nearest to it."""
    bands = [-(-len(found.labels) // _COLUMNS) for found in groups.values()]
    columns = min(_COLUMNS, max(len(found.labels) for found in groups.values()))
    heights = [0.8 + 3.3 * count for count in bands]
    figure = Figure(figsize=(1.1 + 1.2 * columns, sum(heights)), layout="constrained")
    parts = figure.subfigures(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, (name, found), rows in zip(parts, groups.items(), bands, strict=True):
        _draw_group(part, name, found, rows, columns)
    figure.savefig(path, dpi=150)


def _draw_group(part: SubFigure, name: str, found: AnchorPrivacy, bands: int, columns: int) -> None:
    part.suptitle(
        f"{name}\nPSNR of an anchor to the nearest real image: {found.psnr.min():.1f} to "
        f"{found.psnr.max():.1f} dB;\nof a real image to its nearest other: "
        f"{found.median_real_psnr:.1f} dB (median of {len(found.real_psnr)})",
        fontsize="medium",
    )
    grid = part.subplots(2 * bands, columns, squeeze=False)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    for i, label in enumerate(found.labels):
        band, column = divmod(i, columns)
        above, below = grid[2 * band : 2 * band + 2, column]
        _show(above, found.anchors[i])
        above.set_title(_wrapped(found.class_names[label]), fontsize=7)
        above.set_xlabel(
            f"confidence {found.confidences[i]:.3f}\nPSNR {found.psnr[i]:.1f} dB", fontsize=7
        )
        _show(below, found.nearest[i])
        below.set_xlabel(_wrapped(found.class_names[found.nearest_labels[i]]), fontsize=7)
        if column == 0:
            above.set_ylabel("anchor", fontsize=8)
            below.set_ylabel("nearest real", fontsize=8)


def _show(axes: Axes, pixels: Pixels) -> None:
    """Draw a picture, ``(channels, height, width)``."""
    axes.imshow(pixels.transpose(1, 2, 0), cmap="gray", vmin=0, vmax=255, interpolation="nearest")


def _wrapped(name: str) -> str:
    return "\n".join(textwrap.wrap(shortened(name, 48), 16, max_lines=3, placeholder="…"))
