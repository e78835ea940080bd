"""The loss around a global model, along two directions (paper, Figure 6)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter
from torch import Tensor

from fedadb_app.config import RunConfig
from fedadb_app.data.batches import LocalData
from fedadb_app.errors import TrainingError
from fedadb_app.evaluation import evaluate
from fedadb_app.local_training import perturbed
from fedadb_app.models.classifier import ImageClassifier

RADIUS = 0.5
"""Largest a and b, in the parameters' own units where v_1 and v_2 have length one."""

POINTS = 15
"""Values of a and of b, evenly from -RADIUS to RADIUS: an odd number has the model itself."""

_LEAST_LOSS = 1e-4
"""Where the picture's logarithmic scale begins at the latest."""


@dataclass(frozen=True)
class Surface:
    """Loss and accuracy of the models theta + a v_1 + b v_2.

    Attributes
    ----------
    offsets : numpy.ndarray
        The values of a, and of b; float64 ``(points,)``.
    loss : numpy.ndarray
        Mean cross-entropy, float64 ``(points, points)``: a row for each b, a column for each a.
    accuracy : numpy.ndarray
        Percent, likewise.
    """

    offsets: npt.NDArray[np.float64]
    loss: npt.NDArray[np.float64]
    accuracy: npt.NDArray[np.float64]

    def rows(self) -> list[dict[str, float]]:
        """Return one row per point: ``a``, ``b``, ``loss``, ``accuracy``."""
        return [
            {
                "a": float(a),
                "b": float(b),
                "loss": float(self.loss[i, j]),
                "accuracy": float(self.accuracy[i, j]),
            }
            for i, b in enumerate(self.offsets)
            for j, a in enumerate(self.offsets)
        ]


def loss_surface(
    model: ImageClassifier,
    data: LocalData,
    config: RunConfig,
    first: Mapping[str, Tensor],
    second: Mapping[str, Tensor],
) -> Surface:
    """Evaluate the model on a grid around its weights, which come back bitwise.

    Parameters
    ----------
    model : ImageClassifier
        Left in evaluation mode.
    data : LocalData
        At least one sample, on the model's device.
    config : RunConfig
        The run's, for the batches and the precision that it evaluates in.
    first, second : Mapping[str, torch.Tensor]
        v_1 and v_2, by the names of the same parameters; such as the unit eigenvectors of
        `fedadb_app.analysis.hessian.top_eigenpairs`.

    Raises
    ------
    TrainingError
        If a loss is not finite.
    """
    offsets = RADIUS * np.linspace(-1, 1, POINTS)
    loss, accuracy = np.empty((2, POINTS, POINTS))
    parameters = [model.get_parameter(name) for name in first]
    for row, b in enumerate(offsets):
        for column, a in enumerate(offsets):
            step = [float(a) * first[name] + float(b) * second[name] for name in first]
            with perturbed(parameters, step):
                found = evaluate(model, data, config)
            loss[row, column], accuracy[row, column] = found.loss, found.accuracy
    if not np.isfinite(loss).all():
        raise TrainingError(f"the loss is not finite within a radius of {RADIUS:g} of the model")
    return Surface(offsets, loss, accuracy)


def plot_surfaces(surfaces: Mapping[str, Surface], path: Path) -> None:
    """Draw losses side by side under their titles, on one logarithmic colour scale."""
    losses = [np.maximum(surface.loss, _LEAST_LOSS) for surface in surfaces.values()]
    lowest, highest = min(loss.min() for loss in losses), max(loss.max() for loss in losses)
    highest = max(highest, 10 * lowest)  # a scale needs some extent
    norm, levels = LogNorm(lowest, highest), np.geomspace(lowest, highest, 14)[1:-1]
    figure = Figure(figsize=(0.8 + 2.4 * len(surfaces), 2.9), layout="constrained")
    row = figure.subplots(1, len(surfaces), sharey=True, squeeze=False)[0]
    for axes, (title, surface), loss in zip(row, surfaces.items(), losses, strict=True):
        offsets = surface.offsets
        mesh = axes.pcolormesh(offsets, offsets, loss, norm=norm, cmap="viridis", shading="gouraud")
        axes.contour(offsets, offsets, loss, levels, colors="white", linewidths=0.5)
        axes.plot(0, 0, "+", color="red")
        axes.set_title(title, fontsize="small")
        axes.set_xlabel("along $v_1$", fontsize="small")
        axes.set_aspect("equal")
    row[0].set_ylabel("along $v_2$", fontsize="small")
    bar = figure.colorbar(mesh, ax=list(row), label="training loss", shrink=0.8)
    for set_formatter in (bar.ax.yaxis.set_major_formatter, bar.ax.yaxis.set_minor_formatter):
        set_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    figure.savefig(path, dpi=150)
