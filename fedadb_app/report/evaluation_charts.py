"""Pictures of what a model says of its test images."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.metrics import precision_recall_curve, roc_curve

from fedadb_app.analysis.style import NAMED, shortened
from fedadb_app.metrics import CALIBRATION_BINS, Counts, Labels, Probabilities, confusion_matrix
from fedadb_app.report.svg import MUTED, NARROW, OTHERS, SERIES, WIDE, Picture, ink_on

_WITH_COUNTS = 12  # more classes are read by their colours
Floats = npt.NDArray[np.float64]
Models = Mapping[str, Probabilities]
"""What each model says of the same images, by its name."""


def confusion(
    caption: str, labels: Labels, probabilities: Probabilities, names: Sequence[str]
) -> Picture:
    """Draw images by true class (rows) and predicted class, coloured by their share of the row."""
    count = len(names)
    found: Counts = confusion_matrix(labels, probabilities.argmax(axis=1), count)
    shares = found / np.maximum(found.sum(axis=1, keepdims=True), 1)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        image = axes.imshow(shares, vmin=0, vmax=1, cmap="viridis")
        if count <= _WITH_COUNTS:
            for (row, column), images in np.ndenumerate(found):
                ink = ink_on(*image.to_rgba(np.array([shares[row, column]]))[0, :3])
                axes.text(column, row, f"{images}", ha="center", va="center", color=ink)
        short = [shortened(name, 18) for name in names] if count <= NAMED else []
        if short:
            axes.set_xticks(range(count), short, rotation=45, ha="right")
            axes.set_yticks(range(count), short)
        axes.set(xlabel="predicted", ylabel="true")
        axes.grid(visible=False)
        axes.tick_params(length=0)
        bar = figure.colorbar(image, ax=axes, label="share of the true class", pad=0.015)
        bar.outline.set_visible(False)

    off = found.copy()
    np.fill_diagonal(off, 0)
    true, given = divmod(int(off.argmax()), count)
    most = (
        f" The most frequent mistake: {off.max()} of {found[true].sum()} images of {names[true]} "
        f"are taken for {names[given]}."
        if off.any()
        else ""
    )
    right = int(found.diagonal().sum())
    alt = f"{caption}: {right} of {found.sum()} images are right.{most}"
    return Picture(draw, (WIDE[0], 1.8 + 0.3 * min(count, NAMED)), alt, caption, wide=True)


def roc(labels: Labels, models: Models) -> Picture:
    """Draw the ROC curves of class 1 of two."""
    curves = {name: roc_curve(labels, p[:, 1])[:2] for name, p in models.items()}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot([0, 100], [0, 100], color=OTHERS, linewidth=1)
        _curves(axes, {name: (100 * fpr, 100 * tpr) for name, (fpr, tpr) in curves.items()})
        axes.set(xlabel="100 % − specificity (%)", ylabel="sensitivity (%)")

    said = [
        f"{name}: at 90 % specificity {100 * np.interp(0.1, fpr, tpr):.1f} % sensitivity"
        for name, (fpr, tpr) in curves.items()
    ]
    return Picture(draw, NARROW, f"ROC curve. {'; '.join(said)}.", "ROC curve")


def precision_recall(labels: Labels, models: Models) -> Picture:
    """Draw the precision-recall curves of class 1 of two."""
    curves = {name: precision_recall_curve(labels, p[:, 1])[:2] for name, p in models.items()}
    share = float(np.mean(labels == 1))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.axhline(100 * share, color=OTHERS, linewidth=1)
        shown = {name: (100 * recall, 100 * found) for name, (found, recall) in curves.items()}
        _curves(axes, shown)
        axes.set(xlabel="recall, which is sensitivity (%)", ylabel="precision (%)")
        axes.set_ylim(0, 102)

    said = [
        f"{name}: at 90 % recall {100 * found[recall >= 0.9].max():.1f} % precision"
        for name, (found, recall) in curves.items()
    ]
    share_said = f"{100 * share:.1f} % of the images are of class 1"
    alt = f"Precision-recall curve. {'; '.join(said)}; {share_said}."
    return Picture(draw, NARROW, alt, "Precision and recall")


def reliability(labels: Labels, models: Models) -> Picture:
    """Draw accuracy over the top probability, in the bins of the calibration error."""
    curves = {name: _bins(labels, p) for name, p in models.items()}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot([0, 100], [0, 100], color=OTHERS, linewidth=1)
        for colour, (name, (top, right, share)) in zip(SERIES, curves.items(), strict=False):
            axes.plot(100 * top, 100 * right, color=colour, label=name)
            axes.scatter(100 * top, 100 * right, s=6 + 90 * share, color=colour)
        _legend(axes, len(curves))
        axes.set(xlabel="top probability (%)", ylabel="accuracy (%)")
        axes.text(98, 4, "size: share of the images", ha="right", color=MUTED, fontsize="small")

    said = []
    for name, (top, right, share) in curves.items():
        worst = int(np.argmax(share * np.abs(top - right)))
        said.append(
            f"{name}: {100 * share[worst]:.0f} % of the images have a top probability about "
            f"{100 * top[worst]:.0f} %, of which {100 * right[worst]:.0f} % are right"
        )
    alt = f"Reliability diagram, {CALIBRATION_BINS} bins. {'; '.join(said)}."
    return Picture(draw, NARROW, alt, "Reliability")


def _bins(labels: Labels, probabilities: Probabilities) -> tuple[Floats, Floats, Floats]:
    """Return of each bin that is not empty: mean top probability, accuracy, share of images."""
    top = probabilities.max(axis=1).astype(np.float64)
    bins = np.ceil(top * CALIBRATION_BINS).astype(np.int64)
    counts = np.bincount(bins)
    filled = counts > 0
    right = np.bincount(bins, weights=probabilities.argmax(axis=1) == labels)
    tops = np.bincount(bins, weights=top)
    images = counts[filled]
    return tops[filled] / images, right[filled] / images, images / len(labels)


def _curves(axes: Axes, curves: Mapping[str, tuple[Floats, Floats]]) -> None:
    for colour, (name, (x, y)) in zip(SERIES, curves.items(), strict=False):
        axes.plot(x, y, color=colour, label=name)
    _legend(axes, len(curves))


def _legend(axes: Axes, count: int) -> None:
    if count > 1:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize="small")
