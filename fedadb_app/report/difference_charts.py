"""Pictures of a comparison: which methods differ, and what accuracy costs."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedadb_app.analysis.critical_difference import draw_critical_difference, height
from fedadb_app.analysis.significance import LEVEL, Ranking
from fedadb_app.analysis.style import colours, shortened
from fedadb_app.report.charts import Line
from fedadb_app.report.svg import INK, SERIES, WIDE, Picture, ink_on
from fedadb_app.runs.tables import Floats


def critical_difference(caption: str, names: Sequence[str], found: Ranking) -> Picture:
    """Draw methods by mean rank, with bars over those that do not differ."""

    def draw(figure: Figure) -> None:
        draw_critical_difference(figure.subplots(), names, found, INK, SERIES[1])

    order = np.argsort(found.mean_ranks, kind="stable")
    ranks = ", ".join(f"{names[i]} {found.mean_ranks[i]:.2f}" for i in order)
    groups = "; ".join(", ".join(names[i] for i in group) for group in found.groups()) or "none"
    alt = (
        f"Critical-difference diagram. {caption}, mean ranks over {found.blocks} blocks: {ranks}. "
        f"Critical difference {found.critical_difference:.2f}. Not told apart: {groups}."
    )
    return Picture(draw, (WIDE[0], height(found)), alt, caption, wide=True)


def significance_matrix(
    caption: str, names: Sequence[str], differences: Floats, p_values: Floats
) -> Picture:
    """Draw how much each method is ahead of each other one, and where that is significant.

    Parameters
    ----------
    caption : str
        What is shown.
    names : Sequence[str]
        Of the methods.
    differences : numpy.ndarray
        Mean of the row's method minus the column's, points, ``(k, k)``; NaN where not known.
    p_values : numpy.ndarray
        Corrected, ``(k, k)``; NaN where not known.
    """
    count = len(names)
    largest = max(float(np.nanmax(np.abs(differences), initial=0)), 1e-9)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        image = axes.imshow(differences, cmap="RdBu", vmin=-largest, vmax=largest)
        for (row, column), value in np.ndenumerate(differences):
            if row != column and not np.isnan(value):
                star = "*" if p_values[row, column] < LEVEL else ""
                ink = ink_on(*image.to_rgba(np.array([value]))[0, :3])
                axes.text(
                    *(column, row, f"{value:+.1f}{star}"),
                    ha="center",
                    va="center",
                    color=ink,
                    fontsize="small",
                )
        short = [shortened(name, 14) for name in names]
        axes.set_xticks(range(count), short, rotation=45, ha="right")
        axes.set_yticks(range(count), short)
        axes.grid(visible=False)
        axes.tick_params(length=0)
        bar = figure.colorbar(image, ax=axes, label="row minus column (points)", pad=0.015)
        bar.outline.set_visible(False)

    known = np.argwhere(p_values < LEVEL)
    said = [
        f"{names[i]} over {names[j]} {differences[i, j]:+.2f} (p = {p_values[i, j]:.3g})"
        for i, j in known
        if differences[i, j] > 0
    ]
    alt = f"Matrix of differences. {caption} (points). Significant: {', '.join(said) or 'none'}."
    return Picture(draw, (WIDE[0], 1.6 + 0.34 * count), alt, caption, wide=True)


def accuracy_over(caption: str, unit: str, curves: Mapping[str, Line]) -> Picture:
    """Draw accuracy over what it has cost; a line's rounds are its costs so far."""

    def draw(figure: Figure) -> None:
        axes: Axes = figure.subplots()
        shades = colours(len(curves))
        for number, (name, curve) in enumerate(curves.items()):
            axes.plot(curve.rounds, curve.values, color=shades[number], label=name, linewidth=1.4)
        axes.set_xlabel(unit)
        axes.set_ylabel("%")
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.margins(x=0.02)
        if len(curves) > 1:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")

    ends = [
        f"{name}: {line.values[-1]:.2f} % after {line.rounds[-1]:.6g} {unit}"
        for name, line in curves.items()
    ]
    alt = f"Line chart. {caption}. {'; '.join(ends)}."
    return Picture(draw, WIDE, alt, caption, wide=True)
