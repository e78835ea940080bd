"""What the read-outs' pictures share: colours, class names, size."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D

_PALETTE = (
    *("#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6"),
    *("#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd"),
)
"""Ten colours told apart with any colour vision (Petroff, arXiv:2107.02270, 2021)."""

NAMED = 30  # more classes are numbered only
_CHARACTERS_PER_INCH = 13  # of a small font


def draw_class_strip(
    axes: Axes, rounds: Sequence[int], values: npt.NDArray[np.float64]
) -> AxesImage:
    """Draw accuracy per class over rounds, each class a row; return what a colour bar needs.

    Parameters
    ----------
    axes : Axes
        Where to.
    rounds : Sequence[int]
        Evaluated rounds; a column reaches back to the evaluation before it.
    values : numpy.ndarray
        Percent, ``(len(rounds), C)``.
    """
    return axes.imshow(
        np.repeat(values.T, np.diff([0, *rounds]), axis=1),
        aspect="auto",
        vmin=0,
        vmax=100,
        cmap="viridis",
        interpolation="none",
        extent=(0.5, rounds[-1] + 0.5, values.shape[1] - 0.5, -0.5),
    )


def colours(count: int) -> Sequence[str]:
    """Return so many colours: the palette's, or a scale's where it has too few."""
    if count <= len(_PALETTE):
        return _PALETTE[:count]
    scale = mpl.colormaps["viridis"](np.linspace(0, 1, count))
    return [mpl.colors.to_hex(colour) for colour in scale]


def numbered(class_names: Sequence[str], width: int) -> list[str]:
    """Return "0 adipose", …, shortened to `width` characters; of many classes the number alone."""
    if len(class_names) > NAMED:
        return [str(c) for c in range(len(class_names))]
    return [shortened(f"{c} {name}", width) for c, name in enumerate(class_names)]


def shortened(text: str, width: int) -> str:
    """Cut a text to `width` printable characters, with an ellipsis, and have it drawn as it is."""
    shown = "".join(character for character in text if character.isprintable())
    if len(shown) > width:
        shown = shown[: width - 1].rstrip() + "…"
    return shown.replace("$", r"\$")  # between two dollars Matplotlib sets mathematics


def add_legend(figure: Figure, handles: Sequence[Line2D]) -> None:
    """Put a legend below the axes, in as many columns as its longest entry leaves room for."""
    longest = 4 + max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, int(figure.get_figwidth() * _CHARACTERS_PER_INCH / longest))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(columns, len(handles)),
        fontsize="small",
        frameon=False,
    )


def class_legend(class_names: Sequence[str]) -> list[Line2D]:
    """Return the legend's entries: one dot per class, and the star of an anchor."""
    named = class_names if len(class_names) <= NAMED else ()
    dots = [
        Line2D([], [], linestyle="", marker="o", color=colour, label=label)
        for colour, label in zip(colours(len(class_names)), numbered(named, 40), strict=False)
    ]
    star = Line2D(
        *([], []),
        linestyle="",
        marker="*",
        markersize=12,
        markerfacecolor="white",
        markeredgecolor="black",
        label="class anchor",
    )
    return [*dots, star]
