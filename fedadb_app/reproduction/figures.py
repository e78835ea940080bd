"""Figures 2 and 3: accuracy over what is varied, all else equal."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from fedadb_app.reproduction.sweeps import SWEEPS, has_key
from fedadb_app.reproduction.tables import Number
from strategies.registry import method_title


def plot_sweeps(numbers: Sequence[Number], baseline: str, path: Path) -> None:
    """Draw a panel per key: the mean, the deviation over seeds, the default in red as in the paper.

    Parameters
    ----------
    numbers : Sequence[Number]
        Rows are ``key=value``, columns methods.
    baseline : str
        The method drawn in grey, without its default.
    path : Path
        Where to.
    """
    keys = list(dict.fromkeys(number.row.partition("=")[0] for number in numbers))
    figure = Figure(figsize=(3.2 * len(keys), 3.2), layout="constrained")
    for axes, key in zip(figure.subplots(1, len(keys), squeeze=False)[0], keys, strict=True):
        default, tried = SWEEPS[key]
        positions = {f"{key}={value}": position for position, value in enumerate(tried)}
        for method in dict.fromkeys(number.column for number in numbers):
            points = [n for n in numbers if n.row in positions and n.column == method and n.values]
            if not points:
                continue
            x = [positions[n.row] for n in points]
            y = [n.mean for n in points]
            spread = [0.0 if len(n.values) < 2 else n.deviation for n in points]
            colour, title = "C7" if method == baseline else "C0", method_title(method)
            if not has_key(method, key):
                axes.axhline(y[0], color=colour, linestyle="--", label=title)
                continue
            axes.errorbar(x, y, spread, color=colour, marker="o", capsize=3, label=title)
            if method != baseline:
                at_default = [n for n in points if n.row == f"{key}={default}"]
                x, y = [positions[n.row] for n in at_default], [n.mean for n in at_default]
                axes.plot(x, y, "ro", zorder=3, label="default")
        axes.set_xticks(range(len(tried)), [f"{value:g}" for value in tried])
        axes.set_xlabel(key)
        axes.grid(alpha=0.3)
    first = figure.axes[0]
    first.set_ylabel("best five rounds, accuracy (%)")
    first.legend(fontsize="small")
    figure.savefig(path, dpi=150)
