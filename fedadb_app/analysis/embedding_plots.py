"""Pictures of class anchors among real images (paper, section 6, Figures 7 and 8)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from fedadb_app.analysis.embeddings import Correlation, Embedding, correlation
from fedadb_app.analysis.style import add_legend, class_legend, colours, numbered

_VALUES_IN_CELLS = 12  # with more classes a matrix is read by its colours

_CORNERS = (("left", "bottom"), ("left", "top"), ("right", "top"), ("right", "bottom"))
"""Where an anchor's number stands, by class, so that those of anchors in one place do not meet."""


def plot_tsne(stages: Mapping[str, Embedding], path: Path) -> None:
    """Draw Figure 7: a map of `tsne` for each stage, e.g. "round 10"."""
    names = next(iter(stages.values())).class_names
    figure = Figure(figsize=(5.2 * len(stages), 5.6), layout="constrained")
    row = figure.subplots(1, len(stages), squeeze=False)[0]
    for axes, (stage, space) in zip(row, stages.items(), strict=True):
        _scatter(axes, space)
        axes.set(title=stage, xticks=[], yticks=[])
    add_legend(figure, class_legend(names))
    figure.savefig(path, dpi=150)


def plot_pca_and_correlation(stages: Mapping[str, Embedding], path: Path) -> None:
    """Draw Figure 8: for each stage the space of `pca`, and the correlations in it."""
    names = next(iter(stages.values())).class_names
    figure = Figure(figsize=(11, 0.7 + 4.6 * len(stages)), layout="constrained")
    for row, (stage, space) in enumerate(stages.items()):
        axes = figure.add_subplot(len(stages), 2, 2 * row + 1, projection="3d")
        axes.computed_zorder = False  # anchors before dots
        axes.set_box_aspect(None, zoom=0.88)  # the layout does not see its labels
        _scatter(axes, space)
        axes.set(title=stage, xlabel="PC 1", ylabel="PC 2", zlabel="PC 3")
        _draw_matrix(figure.add_subplot(len(stages), 2, 2 * row + 2), correlation(space))
    add_legend(figure, class_legend(names))
    figure.savefig(path, dpi=150)


def _scatter(axes: Axes, space: Embedding) -> None:
    """Draw real images as dots and anchors as numbered stars, in two or three dimensions."""
    plain: Any = axes  # whose methods are typed for two dimensions only
    opaque = {"depthshade": False} if axes.name == "3d" else {}
    halo = [withStroke(linewidth=2.5, foreground="white")]
    for c, colour in enumerate(colours(len(space.class_names))):
        dots = space.real[space.real_labels == c]
        plain.scatter(*dots.T, s=9, color=colour, alpha=0.6, linewidths=0, **opaque)
        stars = space.anchors[space.anchor_labels == c]
        plain.scatter(
            *stars.T, s=230, marker="*", color=colour, edgecolors="black", zorder=3, **opaque
        )
        for star in stars:
            side, level = _CORNERS[c % len(_CORNERS)]
            text = plain.text(*star, f"  {c}  ", weight="bold", ha=side, va=level, zorder=4)
            text.set_path_effects(halo)


def _draw_matrix(axes: Axes, found: Correlation) -> None:
    classes = len(found.class_names)
    image = axes.imshow(found.matrix, cmap="RdBu_r", vmin=-1, vmax=1)
    axes.set_facecolor("lightgrey")  # where r is not a number
    axes.set_title(
        f"Pearson's r: mean of the diagonal {found.own_class:.2f}, elsewhere "
        f"{found.other_classes:.2f}",
        fontsize="medium",
    )
    axes.set(xlabel="centre of real images of class", ylabel="anchor of class")
    if classes <= _VALUES_IN_CELLS:
        axes.set_xticks(range(classes))
        axes.set_yticks(range(classes), numbered(found.class_names, 24), fontsize="small")
        for (row, column), r in np.ndenumerate(found.matrix):
            colour = "white" if abs(r) > 0.6 else "black"
            text = "–" if np.isnan(r) else f"{r:.2f}"
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=7)
    axes.figure.colorbar(image, ax=axes, shrink=0.8)
