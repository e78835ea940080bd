"""A comparison's pictures: accuracy over rounds, and class-wise accuracy per method."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedadb_app.analysis.style import draw_class_strip
from fedadb_app.comparison.readings import Reading, mean_curve
from strategies.registry import method_title


def plot_curves(readings: Sequence[Reading], path: Path) -> None:
    """Draw accuracy over rounds: the mean over seeds, and the band from lowest to highest."""
    by_method: dict[str, list[Reading]] = {}
    for reading in readings:
        by_method.setdefault(reading.cell.strategy, []).append(reading)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for position, (name, rs) in enumerate(by_method.items()):
        rounds, mean = mean_curve(rs)
        colour = f"C{position % 10}"
        style = "-" if position < 10 else "--"
        (line,) = axes.plot(
            rounds, mean, style, color=colour, label=method_title(name), linewidth=1.6
        )
        if len(rs) > 1:
            curves = np.array([r.accuracies for r in rs])
            axes.fill_between(
                rounds,
                curves.min(axis=0),
                curves.max(axis=0),
                color=line.get_color(),
                alpha=0.18,
                linewidth=0,
            )
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy (%)")
    axes.grid(alpha=0.3)
    axes.legend(ncols=2 if len(by_method) > 4 else 1, fontsize="small")
    figure.savefig(path, dpi=150)


def plot_classes(readings: Sequence[Reading], path: Path) -> None:
    """Draw class-wise accuracy over rounds, a strip per method (first seed; Figure 5)."""
    first: dict[str, Reading] = {}
    for reading in readings:
        first.setdefault(reading.cell.strategy, reading)
    figure = Figure(figsize=(8, 0.5 + 1.25 * len(first)), layout="constrained")
    rows = figure.subplots(len(first), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, reading) in zip(rows, first.items(), strict=True):
        image = draw_class_strip(axes, reading.rounds, reading.class_accuracy)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title(method_title(name), fontsize="small", loc="left")
        axes.set_ylabel("class", fontsize="small")
    rows[-1].set_xlabel("round")
    figure.colorbar(image, ax=list(rows), label="accuracy (%)", shrink=0.6)
    figure.savefig(path, dpi=150)
