"""A comparison's numbers: ``comparison.csv``, ``comparison.md`` and, for LaTeX, ``.tex``."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scipy import stats

from fedadb_app.analysis.convergence import TARGETS, rounds_to_targets, targets_of
from fedadb_app.analysis.table_files import latex, markdown
from fedadb_app.assignments import as_assignments
from fedadb_app.comparison.readings import Reading, mean_curve
from fedadb_app.comparison.tuned import SENSITIVITY, sensitivity
from fedadb_app.config import Scalar
from fedadb_app.metrics import BETTER
from fedadb_app.runs.atomic import replace
from fedadb_app.runs.record import cell
from fedadb_app.runs.tables import Table, csv_text
from strategies.registry import OWN, method_title


def write_csv(readings: Sequence[Reading], path: Path) -> None:
    """Write one row per run; the metrics at its end are those of the reported round."""
    columns = (
        "best5",
        "final",
        "last50",
        "forgetting",
        "seconds_per_round",
        "megabytes_per_round",
        "failures",
        "reported_round",
    )
    reported = [f"reported_{name.replace('-', '_')}" for name in BETTER]
    rows = [["strategy", "alpha", "seed", *columns, *reported]]
    for r in readings:
        cells = [getattr(r, column) for column in columns]
        shown = [f"{c:.3f}" if isinstance(c, float) else c for c in cells]
        shown += [cell("", r.reported[name]) for name in BETTER]
        rows.append([r.cell.strategy, f"{r.cell.alpha:g}", str(r.cell.seed), *shown])
    replace(path, csv_text(rows).encode())


def write_markdown(
    readings: Sequence[Reading],
    reference: str,
    path: Path,
    own: Mapping[str, Mapping[str, Scalar]],
    trials: Table | None = None,
) -> None:
    """Write the tables a reader wants, one set per alpha, and beside them as LaTeX.

    Parameters
    ----------
    readings : Sequence[Reading]
        All complete runs.
    reference : str
        The method that the paired differences are taken against.
    path : Path
        Where to.
    own : Mapping[str, Mapping[str, Scalar]]
        By method: the values that its runs alone have.
    trials : Table or None
        How these were tuned, where they were.
    """
    page, sources = ["# Comparison", ""], []
    if own:
        note = "Values that one method alone has."
        rows = [[method_title(name), f"`{as_assignments(own[name])}`"] for name in own]
        table = Table(["method", "values"], rows)
        page += [note, "", *markdown(table), ""]
        sources.append(latex(table, note))
    if trials is not None:
        table = sensitivity(trials)
        page += ["## Tuning", "", SENSITIVITY, "", *markdown(table), ""]
        sources.append(latex(table, f"Tuning. {SENSITIVITY}"))
    for alpha in sorted({r.cell.alpha for r in readings}):
        by_method: dict[str, list[Reading]] = {}
        for r in readings:
            if r.cell.alpha == alpha:
                by_method.setdefault(r.cell.strategy, []).append(r)
        page += [f"## alpha = {alpha:g}", ""]
        for title, note, table in _tables(by_method, reference):
            page += [*([f"### {title}", ""] if title else []), note, "", *markdown(table), ""]
            caption = f"alpha = {alpha:g}. {f'{title}. ' if title else ''}{note}"
            sources.append(latex(table, caption))
    replace(path, "\n".join(page).encode())
    replace(path.with_suffix(".tex"), "\n".join(sources).encode())


def _tables(
    by_method: Mapping[str, Sequence[Reading]], reference: str
) -> Iterator[tuple[str, str, Table]]:
    """Yield title, note and table."""
    yield "", *_accuracy_table(by_method)
    yield "Rounds to target", *_rounds_table(by_method)
    if reference in by_method and len(by_method) > 1:
        title = f"Difference to {method_title(reference)}, paired by seed"
        yield title, *_difference_table(by_method, reference)


def mean_and_std(values: Sequence[float], decimals: int = 2) -> str:
    """Return ``mean ± sample standard deviation``, or the mean alone for a single value."""
    mean = f"{statistics.mean(values):.{decimals}f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{decimals}f}"


def _accuracy_table(by_method: Mapping[str, Sequence[Reading]]) -> tuple[str, Table]:
    best = max(statistics.mean(r.best5 for r in rs) for rs in by_method.values())
    note = (
        "Accuracy in %, mean ± sample standard deviation over seeds. Forgetting: mean drop of "
        "per-class accuracy from its running best, in points."
    )
    chosen = any(r.chosen for rs in by_method.values() for r in rs)
    means = [*(["reported_accuracy"] if chosen else []), "final", "last50", "forgetting"]
    rows = []
    for name, rs in by_method.items():
        best5 = mean_and_std([r.best5 for r in rs])
        if statistics.mean(r.best5 for r in rs) == best:
            best5 = f"**{best5}**"
        costs = ("seconds_per_round", "megabytes_per_round")
        rows.append(
            [method_title(name), str(len(rs)), best5]
            + [mean_and_std([getattr(r, n) for r in rs]) for n in means]
            + [f"{statistics.mean(getattr(r, n) for r in rs):.2f}" for n in costs]
        )
    header = ["method", "seeds", "best five rounds", *(["chosen round"] if chosen else [])]
    header += ["final", "last 50", "forgetting", "s/round", "MB/round"]
    return note, Table(header, rows)


def _rounds_table(by_method: Mapping[str, Sequence[Reading]]) -> tuple[str, Table]:
    """Table 2 of the paper: on the mean curve over seeds, smoothed with factor 0.2."""
    curves = {name: mean_curve(rs) for name, rs in by_method.items()}
    targets = targets_of(curves.values())
    reached = rounds_to_targets(curves, targets)
    ours = reached.get(OWN)
    note = (
        f"First round at which the smoothed mean accuracy (EWMA, factor 0.2) reaches 45, 65 "
        f"and 85 % of the maximum, {targets[-1] / TARGETS[-1]:.2f} %. In brackets: times as "
        f"many rounds as {method_title(OWN)}. –: never."
    )
    rows = []
    for name, numbers in reached.items():
        cells = []
        for position, number in enumerate(numbers):
            our = ours[position] if ours else None
            ratio = f" ({number / our:.1f}×)" if number and our else ""
            cells.append(f"{number}{ratio}" if number else "–")
        rows.append([method_title(name), *cells])
    return note, Table(["method", *(f"{target:.1f} %" for target in targets)], rows)


def paired_interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % Student-t confidence interval of a mean difference; None below two pairs."""
    if len(differences) < 2:
        return None
    mean, error = statistics.mean(differences), stats.sem(differences)
    half = float(stats.t.ppf(0.975, len(differences) - 1) * error)
    return mean - half, mean + half


def _difference_table(
    by_method: Mapping[str, Sequence[Reading]], reference: str
) -> tuple[str, Table]:
    base = {r.cell.seed: r.best5 for r in by_method[reference]}
    note = (
        "Best-five accuracy minus the reference's with the same seed (same weights, partition "
        "and client schedule), with the 95 % t-interval of the mean."
    )
    rows = []
    for name, rs in by_method.items():
        pairs = [r.best5 - base[r.cell.seed] for r in rs if r.cell.seed in base]
        if name == reference or not pairs:
            continue
        interval = paired_interval(pairs)
        shown = "–" if interval is None else f"{interval[0]:+.2f} … {interval[1]:+.2f}"
        rows.append([method_title(name), str(len(pairs)), f"{statistics.mean(pairs):+.2f}", shown])
    return note, Table(["method", "pairs", "difference", "95 % interval"], rows)
