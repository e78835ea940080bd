"""The pictures of a report, each with alternative text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedadb_app.analysis.convergence import SMOOTHING, smooth
from fedadb_app.analysis.style import NAMED, draw_class_strip, shortened
from fedadb_app.report.svg import MUTED, NARROW, OTHERS, SERIES, WIDE, Picture
from fedadb_app.runs.tables import Floats


@dataclass(frozen=True)
class Line:
    """One curve."""

    label: str
    rounds: Floats
    values: Floats


def lines(name: str, unit: str, curves: Sequence[Line], from_zero: bool = False) -> Picture:
    """Draw curves over rounds.

    Parameters
    ----------
    name, unit : str
        What is shown, and in what.
    curves : Sequence[Line]
        At most as many as there are colours.
    from_zero : bool
        Whether the vertical axis begins at 0.
    """

    def draw(axes: Axes) -> None:
        for colour, curve in zip(SERIES, curves, strict=False):
            axes.plot(curve.rounds, curve.values, label=curve.label, color=colour, **_dots(curve))
        if from_zero:
            axes.set_ylim(bottom=0)
        if len(curves) > 1:
            _legend(axes)
        _over_rounds(axes, unit)

    described = "; ".join(f"{c.label}: {_course(c)}" for c in curves)
    alt = f"Line chart. {name} ({unit}). {described}."
    return Picture(_on_axes(draw), NARROW, alt, name)


def accuracy_curve(rounds: Floats, accuracies: Floats) -> Picture:
    """Draw accuracy over rounds, as it is and smoothed as in the paper."""
    curve = Line("each evaluated round", rounds, accuracies)

    def draw(axes: Axes) -> None:
        axes.plot(rounds, accuracies, color=SERIES[0], alpha=0.45, linewidth=1, label=curve.label)
        axes.plot(
            rounds,
            smooth(accuracies.tolist()),
            color=SERIES[0],
            linewidth=2.2,
            label=f"smoothed (factor {SMOOTHING:g})",
            **_dots(curve),
        )
        _legend(axes)
        axes.set_ylim(bottom=0)
        _over_rounds(axes, "%")

    alt = f"Line chart. Test accuracy (%). {_course(curve)}."
    return Picture(_on_axes(draw), NARROW, alt, "Test accuracy")


def accuracy_of_method(
    title: str, own: Sequence[Line], others: Sequence[Line], highest: float
) -> Picture:
    """Draw one method's mean accuracy and range over seeds before the other methods' means."""
    rounds, values = own[0].rounds, np.array([line.values for line in own])
    mean = Line(title, rounds, values.mean(axis=0))

    def draw(axes: Axes) -> None:
        for other in others:
            axes.plot(other.rounds, smooth(other.values.tolist()), color=OTHERS, linewidth=0.7)
        axes.fill_between(
            rounds, values.min(axis=0), values.max(axis=0), color=SERIES[0], alpha=0.2, linewidth=0
        )
        axes.plot(rounds, mean.values, color=SERIES[0], alpha=0.45, linewidth=0.8)
        axes.plot(rounds, smooth(mean.values.tolist()), color=SERIES[0], linewidth=2, **_dots(mean))
        axes.set_ylim(0, highest)
        _over_rounds(axes, "%")

    alt = f"Line chart. Test accuracy (%) of {title}, {_seeds(len(own))}. {_course(mean)}."
    return Picture(_on_axes(draw), (3.6, 2.1), alt, title)


def class_heat_map(
    caption: str, rounds: Floats, values: Floats, names: Sequence[str], wide: bool
) -> Picture:
    """Draw accuracy per class over rounds.

    Parameters
    ----------
    caption : str
        What is shown.
    rounds : numpy.ndarray
        Evaluated rounds, ``(R,)``; a column reaches back to the evaluation before it.
    values : numpy.ndarray
        Percent, ``(R, C)``.
    names : Sequence[str]
        Of the classes.
    wide : bool
        Whether it has the page's whole width, and with it a key to its colours.
    """

    def draw(axes: Axes) -> None:
        image = draw_class_strip(axes, rounds.astype(int).tolist(), values)
        _name_classes(axes, names, 24 if wide else 12)
        _over_rounds(axes, "")
        if wide:
            _key(axes, image, "accuracy (%)")

    last = {n: v for n, v in zip(names, values[-1], strict=True) if not np.isnan(v)}
    described = ", ".join(f"{n} {v:.2f}" for n, v in last.items())
    if len(last) > NAMED:
        described = f"between {min(last.values()):.2f} and {max(last.values()):.2f}"
    alt = f"Heat map. {caption} (%), classes by rounds. In round {rounds[-1]:.0f}: {described}."
    height = 0.9 + 0.21 * min(len(names), NAMED)
    size = (WIDE[0], height) if wide else (NARROW[0], 0.8 * height)
    return Picture(_on_axes(draw), size, alt, caption, wide)


def holdings(
    sizes: npt.NDArray[np.int64], counts: npt.NDArray[np.int64] | None, names: Sequence[str]
) -> Picture:
    """Draw who holds what: each client's samples, ``(K,)``, and per class, ``(K, C)`` if known."""
    clients = len(sizes)
    height = 1.5 if counts is None else 2.0 + 0.22 * min(len(names), NAMED)
    alt = (
        f"Bar chart. Training samples of {clients} clients: between {sizes.min()} and "
        f"{sizes.max()}, {sizes.sum()} in all."
    )
    if counts is not None:
        classes = (counts > 0).sum(axis=1)
        alt += (
            f" Heat map of samples per class and client: a client holds between {classes.min()} "
            f"and {classes.max()} of {len(names)} classes."
        )

    def draw(figure: Figure) -> None:
        ratios = [1.2] if counts is None else [1.2, height - 1.6]
        rows = figure.subplots(len(ratios), 1, sharex=True, squeeze=False, height_ratios=ratios)
        top, bottom = rows[0, 0], rows[-1, 0]
        top.stairs(sizes, np.arange(clients + 1) - 0.5, fill=True, color=SERIES[0])
        top.set_ylabel("samples")
        if counts is not None:
            image = bottom.imshow(
                np.where(counts == 0, np.nan, counts).T,
                aspect="auto",
                norm=LogNorm(1, max(2, int(counts.max()))),
                cmap="viridis",
                interpolation="none",
                extent=(-0.5, clients - 0.5, len(names) - 0.5, -0.5),
            )
            _name_classes(bottom, names, 24)
            bottom.grid(visible=False)
            _key(bottom, image, "samples (blank: none)")
        bottom.set_xlim(-0.5, clients - 0.5)
        bottom.set_xlabel("client")
        bottom.xaxis.set_major_locator(MaxNLocator(integer=True))

    return Picture(draw, (WIDE[0], height), alt, "Training samples per client", wide=True)


def stacked_seconds(rounds: Floats, parts: Mapping[str, Floats]) -> Picture:
    """Draw what each round's time went into."""
    shown = {name: seconds for name, seconds in parts.items() if seconds.any()}
    edges = np.append(rounds - 0.5, rounds[-1] + 0.5)

    def draw(axes: Axes) -> None:
        base = np.zeros(len(rounds))
        for colour, (name, seconds) in zip(SERIES, shown.items(), strict=False):
            axes.stairs(base + seconds, edges, baseline=base, fill=True, color=colour, label=name)
            base = base + seconds
        _legend(axes)
        _over_rounds(axes, "seconds")

    described = ", ".join(f"{name} {seconds.mean():.3f}" for name, seconds in shown.items())
    alt = f"Stacked bar chart. Seconds of each round; means: {described}."
    return Picture(_on_axes(draw), NARROW, alt, "Time per round")


def bars_over_rounds(name: str, unit: str, rounds: Floats, values: Floats) -> Picture:
    """Draw one bar per round."""
    edges = np.append(rounds - 0.5, rounds[-1] + 0.5)

    def draw(axes: Axes) -> None:
        axes.stairs(values, edges, fill=True, color=SERIES[1])
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        _over_rounds(axes, unit)

    alt = f"Bar chart. {name}: {values.sum():.0f} in all, at most {values.max():.0f} in a round."
    return Picture(_on_axes(draw), NARROW, alt, name)


def bars(name: str, unit: str, values: Mapping[str, float]) -> Picture:
    """Draw one bar per method."""

    def draw(axes: Axes) -> None:
        drawn = axes.barh(list(values), list(values.values()), color=SERIES[0], height=0.62)
        axes.bar_label(drawn, fmt="%.2f", padding=3, color=MUTED, fontsize="small")
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.14)
        axes.set_xlabel(unit)

    described = ", ".join(f"{label} {value:.2f}" for label, value in values.items())
    size = (NARROW[0], 0.7 + 0.22 * len(values))
    alt = f"Bar chart. {name} ({unit}): {described}."
    return Picture(_on_axes(draw), size, alt, name)


def _course(curve: Line) -> str:
    """Put a curve into words."""
    known = ~np.isnan(curve.values)
    rounds, values = curve.rounds[known], curve.values[known]
    if not len(values):
        return "no values"
    low, high = values.argmin(), values.argmax()
    return (
        f"{values[0]:g} in round {rounds[0]:.0f}, {values[-1]:g} in round {rounds[-1]:.0f}, "
        f"lowest {values[low]:g} in round {rounds[low]:.0f}, "
        f"highest {values[high]:g} in round {rounds[high]:.0f}"
    )


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"mean and range over {count} seeds"


def _dots(curve: Line) -> Mapping[str, Any]:
    """Mark the points of a curve that is too short to be seen as a line."""
    return {"marker": "o", "markersize": 3.5} if len(curve.rounds) < 8 else {}


def _legend(axes: Axes) -> None:
    """Name the colours above the axes, where they hide nothing."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=4,
        fontsize="small",
        borderaxespad=0.2,
        columnspacing=1.2,
        handlelength=1.4,
    )


def _over_rounds(axes: Axes, unit: str) -> None:
    axes.set_xlabel("round")
    axes.set_ylabel(unit)
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _name_classes(axes: Axes, names: Sequence[str], width: int) -> None:
    axes.grid(visible=False)
    axes.tick_params(length=0)
    if len(names) > NAMED:
        axes.set_ylabel("class")
        return
    axes.set_yticks(range(len(names)), [shortened(name, width) for name in names])


def _key(axes: Axes, image: ScalarMappable, label: str) -> None:
    bar = axes.figure.colorbar(image, ax=axes, label=label, pad=0.015)
    bar.outline.set_visible(False)


def _on_axes(draw: Callable[[Axes], None]) -> Callable[[Figure], None]:
    return lambda figure: draw(figure.subplots())
