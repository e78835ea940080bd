"""The critical-difference diagram: methods by mean rank, bars over those that do not differ."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from fedadb_app.analysis.significance import Ranking
from fedadb_app.analysis.style import shortened

_STEP = 0.55  # from one name to the next, in the units of the vertical axis
_BAR = 0.28


def height(ranking: Ranking) -> float:
    """Return how high the diagram should be drawn, inches."""
    rows = -(-len(ranking.mean_ranks) // 2)
    return 1.0 + 0.26 * rows + 0.14 * len(ranking.groups())


def draw_critical_difference(
    axes: Axes, names: Sequence[str], ranking: Ranking, ink: str, accent: str
) -> None:
    """Draw the diagram (Demšar, JMLR 7, 2006, Figure 1); the best method stands on the left.

    Parameters
    ----------
    axes : Axes
        Where to; its own axes are taken away.
    names : Sequence[str]
        Of the methods, as in `ranking`.
    ranking : Ranking
        Their mean ranks.
    ink, accent : str
        Colours of the lines, and of the bars that join methods that do not differ.
    """
    count = len(names)
    axes.set_axis_off()
    axes.plot([1, count], [0, 0], color=ink, linewidth=1)
    for rank in range(1, count + 1):
        axes.plot([rank, rank], [0, 0.12], color=ink, linewidth=1)
        axes.text(rank, 0.2, str(rank), ha="center", va="bottom", color=ink, fontsize="small")
    end = 1 + ranking.critical_difference
    axes.plot([1, end], [0.95, 0.95], color=accent, linewidth=2)
    axes.text(end, 1.0, f" {ranking.critical_difference:.2f} = critical difference", color=ink)
    groups = ranking.groups()
    for number, group in enumerate(groups, start=1):
        ranks = ranking.mean_ranks[list(group)]
        level = -_BAR * number
        ends = [ranks.min() - 0.04, ranks.max() + 0.04]
        axes.plot(ends, [level, level], color=accent, linewidth=3)
    order = np.argsort(ranking.mean_ranks, kind="stable")
    left = -(-count // 2)
    margin = 0.02 * count
    for place, method in enumerate(order):
        rank = ranking.mean_ranks[method]
        on_left = place < left
        row = place if on_left else count - 1 - place
        level = -_BAR * (len(groups) + 1) - _STEP * row
        side = 1 - margin if on_left else count + margin
        axes.plot([rank, rank, side], [0, level, level], color=ink, linewidth=0.8)
        text = f"{shortened(names[method], 24)} {rank:.2f} "
        if not on_left:
            text = f" {rank:.2f} {shortened(names[method], 24)}"
        axes.text(side, level, text, ha="right" if on_left else "left", va="center", color=ink)
    room = 0.45 * (count - 1) + 0.5
    axes.set_xlim(1 - room, max(count + room, end))
    axes.set_ylim(-_BAR * (len(groups) + 1) - _STEP * (left - 1) - 0.4, 1.6)
