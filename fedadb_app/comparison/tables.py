"""A comparison's numbers: ``comparison.csv`` and ``comparison.md``."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from scipy import stats

from fedadb_app.analysis.convergence import TARGETS, rounds_to_targets, targets_of
from fedadb_app.comparison.readings import Reading, mean_curve
from fedadb_app.runs.atomic import replace
from strategies.registry import OWN, method_title


def write_csv(readings: Sequence[Reading], path: Path) -> None:
    """Write one row per run."""
    columns = (
        "best5",
        "final",
        "last50",
        "forgetting",
        "seconds_per_round",
        "megabytes_per_round",
        "failures",
    )
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["strategy", "alpha", "seed", *columns])
    for r in readings:
        cells = [getattr(r, column) for column in columns]
        shown = [f"{c:.3f}" if isinstance(c, float) else c for c in cells]
        writer.writerow([r.cell.strategy, f"{r.cell.alpha:g}", r.cell.seed, *shown])
    replace(path, text.getvalue().encode())


def write_markdown(readings: Sequence[Reading], reference: str, path: Path) -> None:
    """Write the tables a reader wants, one set per alpha.

    Parameters
    ----------
    readings : Sequence[Reading]
        All complete runs.
    reference : str
        The method that the paired differences are taken against.
    path : Path
        Where to.
    """
    text = ["# Comparison", ""]
    for alpha in sorted({r.cell.alpha for r in readings}):
        by_method: dict[str, list[Reading]] = {}
        for r in readings:
            if r.cell.alpha == alpha:
                by_method.setdefault(r.cell.strategy, []).append(r)
        text += [f"## alpha = {alpha:g}", "", *_accuracy_table(by_method), ""]
        text += ["### Rounds to target", "", *_rounds_table(by_method), ""]
        if reference in by_method and len(by_method) > 1:
            text += [
                f"### Difference to {method_title(reference)}, paired by seed",
                "",
                *_difference_table(by_method, reference),
                "",
            ]
    replace(path, "\n".join(text).encode())


def mean_and_std(values: Sequence[float], decimals: int = 2) -> str:
    """Return ``mean ± sample standard deviation``, or the mean alone for a single value."""
    mean = f"{statistics.mean(values):.{decimals}f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{decimals}f}"


def _accuracy_table(by_method: Mapping[str, Sequence[Reading]]) -> list[str]:
    best = max(statistics.mean(r.best5 for r in rs) for rs in by_method.values())
    lines = [
        (
            "Accuracy in %, mean ± sample standard deviation over seeds. Forgetting: mean drop of "
            "per-class accuracy from its running best, in points."
        ),
        "",
        "| method | seeds | best five rounds | final | last 50 | forgetting | s/round | MB/round |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, rs in by_method.items():
        best5 = mean_and_std([r.best5 for r in rs])
        if statistics.mean(r.best5 for r in rs) == best:
            best5 = f"**{best5}**"
        lines.append(
            f"| {method_title(name)} | {len(rs)} | {best5} | {mean_and_std([r.final for r in rs])} "
            f"| {mean_and_std([r.last50 for r in rs])} "
            f"| {mean_and_std([r.forgetting for r in rs])} "
            f"| {statistics.mean(r.seconds_per_round for r in rs):.2f} "
            f"| {statistics.mean(r.megabytes_per_round for r in rs):.2f} |"
        )
    return lines


def _rounds_table(by_method: Mapping[str, Sequence[Reading]]) -> list[str]:
    """Table 2 of the paper: on the mean curve over seeds, smoothed with factor 0.2."""
    curves = {name: mean_curve(rs) for name, rs in by_method.items()}
    targets = targets_of(curves.values())
    reached = rounds_to_targets(curves, targets)
    ours = reached.get(OWN)
    lines = [
        (
            f"First round at which the smoothed mean accuracy (EWMA, factor 0.2) reaches 45, 65 "
            f"and 85 % of the maximum, {targets[-1] / TARGETS[-1]:.2f} %. In brackets: times as "
            f"many rounds as {method_title(OWN)}. –: never."
        ),
        "",
        "| method | " + " | ".join(f"{target:.1f} %" for target in targets) + " |",
        "|---|" + "---|" * len(targets),
    ]
    for name, numbers in reached.items():
        cells = []
        for position, number in enumerate(numbers):
            our = ours[position] if ours else None
            ratio = f" ({number / our:.1f}×)" if number and our else ""
            cells.append(f"{number}{ratio}" if number else "–")
        lines.append(f"| {method_title(name)} | " + " | ".join(cells) + " |")
    return lines


def paired_interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % Student-t confidence interval of a mean difference; None below two pairs."""
    if len(differences) < 2:
        return None
    mean, error = statistics.mean(differences), stats.sem(differences)
    half = float(stats.t.ppf(0.975, len(differences) - 1) * error)
    return mean - half, mean + half


def _difference_table(by_method: Mapping[str, Sequence[Reading]], reference: str) -> list[str]:
    base = {r.cell.seed: r.best5 for r in by_method[reference]}
    lines = [
        (
            "Best-five accuracy minus the reference's with the same seed (same weights, partition "
            "and client schedule), with the 95 % t-interval of the mean."
        ),
        "",
        "| method | pairs | difference | 95 % interval |",
        "|---|---|---|---|",
    ]
    for name, rs in by_method.items():
        pairs = [r.best5 - base[r.cell.seed] for r in rs if r.cell.seed in base]
        if name == reference or not pairs:
            continue
        interval = paired_interval(pairs)
        shown = "–" if interval is None else f"{interval[0]:+.2f} … {interval[1]:+.2f}"
        lines.append(
            f"| {method_title(name)} | {len(pairs)} | {statistics.mean(pairs):+.2f} | {shown} |"
        )
    return lines
