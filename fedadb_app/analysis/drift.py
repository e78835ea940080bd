"""How far the clients' models move in a round, and how far apart, from ``diagnostics.csv``."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedadb_app.analysis.style import add_legend, colours
from fedadb_app.errors import DataError
from fedadb_app.runs.tables import diagnostic, read_diagnostics
from fedadb_app.runs.text_files import read

_TITLES = {
    "update_norm": "norm of the mean update",
    "client_update_norm": "mean norm of a client's update",
    "client_drift": "clients' distance from the mean update",
}
"""What `fedadb_app.aggregation.client_drift` writes, and what it is."""


@dataclass(frozen=True)
class Drift:
    """A run's movement, by round.

    Attributes
    ----------
    rounds : numpy.ndarray
        float64 ``(R,)``.
    values : Mapping[str, numpy.ndarray]
        ``update_norm``, ``client_update_norm``, ``client_drift``: L2 norms over all parameters,
        float64 ``(R,)`` each.
    """

    rounds: npt.NDArray[np.float64]
    values: Mapping[str, npt.NDArray[np.float64]]

    def rows(self) -> list[dict[str, float]]:
        """Return one row per round."""
        return [
            {"round": int(t)} | {name: float(column[i]) for name, column in self.values.items()}
            for i, t in enumerate(self.rounds)
        ]


def read_drift(folder: Path) -> Drift:
    """Read a run's movement.

    Raises
    ------
    DataError
        If it is not written there, or the file is damaged.
    """
    table = read(folder / "diagnostics.csv", read_diagnostics)
    columns = {name: dict(zip(*diagnostic(table, name), strict=True)) for name in _TITLES}
    # The only round so far may be half written: it has not all three.
    rounds = sorted(set.intersection(*map(set, columns.values())))
    if not rounds:
        raise DataError(
            f"{folder}: diagnostics.csv has no round with {', '.join(_TITLES)}: the run is of an "
            f"older version, has not finished a round, or has privacy, which leaves little but "
            f"noise of it"
        )
    values = {name: np.array([columns[name][t] for t in rounds]) for name in _TITLES}
    return Drift(np.array(rounds, np.float64), values)


def plot_drift(runs: Mapping[str, Drift], path: Path) -> None:
    """Draw it over rounds, one line per run."""
    figure = Figure(figsize=(12, 4), layout="constrained")
    row = figure.subplots(1, len(_TITLES))
    shades = dict(zip(runs, colours(len(runs)), strict=True))
    for axes, (name, title) in zip(row, _TITLES.items(), strict=True):
        for run, drift in runs.items():
            axes.plot(drift.rounds, drift.values[name], color=shades[run], linewidth=1.4)
        axes.set(title=title, xlabel="round")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    add_legend(figure, [Line2D([], [], color=c, label=run) for run, c in shades.items()])
    figure.savefig(path, dpi=150)
