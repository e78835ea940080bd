"""Whether a comparison's methods differ: ``significance.*``, ``ranks.csv`` and their pictures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fedadb_app.analysis.critical_difference import draw_critical_difference, height
from fedadb_app.analysis.significance import LEVEL, PairedTest, Ranking, holm, paired_test, ranking
from fedadb_app.analysis.table_files import latex, markdown
from fedadb_app.comparison.readings import Reading
from fedadb_app.runs.atomic import replace
from fedadb_app.runs.record import cell
from fedadb_app.runs.tables import Table, csv_text
from strategies.registry import method_title

STATISTICS: Mapping[str, Callable[[Reading], float]] = {
    "reported": lambda r: r.reported_accuracy,
    "last50": lambda r: r.last50,
    "final": lambda r: r.final,
    "best5": lambda r: r.best5,
}
"""Accuracies of a run, percent, of which the first that `statistics_of` returns is to go by."""

TITLES = {
    "reported": "round that validation chose",
    "last50": "mean of the last 50 rounds",
    "final": "last round",
    "best5": "mean of the five best rounds",
}

SIGNIFICANCE, RANKS = "significance.csv", "ranks.csv"
HEADER = ("statistic", "alpha", "family", "method", "against", "pairs", "mean_difference")
TESTS = ("median_difference", "d_z", "t_p", "t_holm", "wilcoxon_p", "wilcoxon_holm")
RANKS_HEADER = ("statistic", "method", "mean_rank", "blocks", "left_out", "friedman_p")


@dataclass(frozen=True)
class Blocks:
    """Methods over blocks, one per alpha and seed in which every method has a complete run.

    Attributes
    ----------
    methods : tuple[str, ...]
        Their names.
    values : numpy.ndarray
        Accuracies, float64 ``(blocks, methods)``.
    left_out : int
        Blocks in which a method lacks its run.
    """

    methods: tuple[str, ...]
    values: np.ndarray[tuple[int, int], np.dtype[np.float64]]
    left_out: int

    @cached_property
    def ranking(self) -> Ranking | None:
        """Their ranks; None where methods or blocks are too few."""
        return ranking(self.values)


def write_significance(readings: Sequence[Reading], reference: str, folder: Path) -> None:
    """Write the tests of all pairs of methods, the ranks, and what a reader wants of both.

    Parameters
    ----------
    readings : Sequence[Reading]
        All complete runs.
    reference : str
        The method that the others are tested against.
    folder : Path
        Of the comparison.
    """
    significance = Table([*HEADER, *TESTS], list(_test_rows(readings, reference)))
    replace(folder / SIGNIFICANCE, csv_text([significance.header, *significance.rows]).encode())
    ranked = {name: blocks_of(readings, name) for name in statistics_of(readings)}
    rows = [row for name, blocks in ranked.items() for row in _rank_rows(name, blocks)]
    ranks = Table([*RANKS_HEADER, "critical_difference"], rows)
    replace(folder / RANKS, csv_text([ranks.header, *ranks.rows]).encode())
    page, sources = ["# Do the methods differ?", ""], []
    for title, note, table in _tables(significance, reference):
        page += [f"## {title}", "", note, "", *markdown(table), ""]
        sources.append(latex(table, f"{title}. {note}"))
    page += _words(ranked)
    replace(folder / "significance.md", "\n".join(page).encode())
    replace(folder / "significance.tex", "\n".join(sources).encode())
    for name, blocks in ranked.items():
        if (found := blocks.ranking) is not None:
            plot_ranks(blocks, found, folder / f"critical-difference-{name}.png")


def plot_ranks(blocks: Blocks, found: Ranking, path: Path) -> None:
    """Draw the critical-difference diagram."""
    figure = Figure(figsize=(8, height(found)), layout="constrained")
    names = [method_title(name) for name in blocks.methods]
    draw_critical_difference(figure.subplots(), names, found, "black", "#bd1f01")
    figure.savefig(path, dpi=150)


def statistics_of(readings: Sequence[Reading]) -> list[str]:
    """Return which of `STATISTICS` say something of these runs.

    Where validation chose no round, the reported one is the last.
    """
    chosen = any(r.chosen for r in readings)
    return [name for name in STATISTICS if chosen or name != "reported"]


def blocks_of(readings: Sequence[Reading], statistic: str) -> Blocks:
    """Return one statistic of all runs by block."""
    value = STATISTICS[statistic]
    methods = tuple(dict.fromkeys(r.cell.strategy for r in readings))
    by_block: dict[tuple[float, int], dict[str, float]] = {}
    for r in readings:
        by_block.setdefault((r.cell.alpha, r.cell.seed), {})[r.cell.strategy] = value(r)
    whole = [
        [found[m] for m in methods] for found in by_block.values() if len(found) == len(methods)
    ]
    values = np.array(whole, np.float64).reshape(len(whole), len(methods))
    return Blocks(methods, values, len(by_block) - len(whole))


def _test_rows(readings: Sequence[Reading], reference: str) -> Iterator[list[str]]:
    """Yield the tests per statistic, alpha and family: against the reference, and of all pairs.

    Holm's correction is over the tests of one family.
    """
    for statistic in statistics_of(readings):
        value = STATISTICS[statistic]
        for alpha in sorted({r.cell.alpha for r in readings}):
            of_method: dict[str, dict[int, float]] = {}
            for r in readings:
                if r.cell.alpha == alpha:
                    of_method.setdefault(r.cell.strategy, {})[r.cell.seed] = value(r)
            others = [name for name in of_method if name != reference]
            families = {"pairs": list(combinations(of_method, 2))}
            if reference in of_method:
                families["reference"] = [(name, reference) for name in others]
            for family, pairs in families.items():
                yield from _family([statistic, f"{alpha:g}", family], of_method, pairs)


def _family(
    begin: Sequence[str],
    of_method: Mapping[str, Mapping[int, float]],
    pairs: Sequence[tuple[str, str]],
) -> Iterator[list[str]]:
    tests: dict[tuple[str, str], PairedTest] = {}
    for one, other in pairs:
        mine, theirs = of_method[one], of_method[other]
        if common := [mine[seed] - theirs[seed] for seed in mine if seed in theirs]:
            tests[one, other] = paired_test(common)
    corrected = [holm([getattr(t, kind) for t in tests.values()]) for kind in ("t", "wilcoxon")]
    for (pair, t), t_holm, w_holm in zip(tests.items(), *corrected, strict=True):
        numbers = (t.mean, t.median, t.effect, t.t, t_holm, t.wilcoxon, w_holm)
        yield [*begin, *pair, str(t.pairs), *(cell("", number) for number in numbers)]


def _rank_rows(statistic: str, blocks: Blocks) -> Iterator[list[str]]:
    found = blocks.ranking
    if found is None:
        return
    tail = [str(found.blocks), str(blocks.left_out), cell("", found.p_value)]
    tail.append(cell("", found.critical_difference))
    for name, rank in zip(blocks.methods, found.mean_ranks.tolist(), strict=True):
        yield [statistic, name, cell("", rank), *tail]


def _tables(significance: Table, reference: str) -> Iterator[tuple[str, str, Table]]:
    """Yield title, note and table of the tests against the reference, per alpha and statistic."""
    titles = ("method", "pairs", "mean", "median", "d_z", "p (t)", "Holm", "p (Wilcoxon)", "Holm")
    rows = [dict(zip(significance.header, row, strict=True)) for row in significance.rows]
    rows = [row for row in rows if row["family"] == "reference"]
    for alpha, statistic in dict.fromkeys((row["alpha"], row["statistic"]) for row in rows):
        shown = [
            [method_title(row["method"]), row["pairs"], *(_shown(row, c) for c in _SHOWN)]
            for row in rows
            if (row["alpha"], row["statistic"]) == (alpha, statistic)
        ]
        title = f"alpha = {alpha}, {TITLES[statistic]}"
        note = (
            f"Accuracy minus that of {method_title(reference)} with the same seed, in points; d_z: "
            f"mean over standard deviation. Two-sided tests; bold: below {LEVEL:g} after Holm's "
            f"correction over the methods."
        )
        yield title, note, Table(titles, shown)


_SHOWN = ("mean_difference", *TESTS)


def _shown(row: Mapping[str, str], column: str) -> str:
    if not row[column]:
        return "–"
    value = float(row[column])
    if column.endswith("_difference"):
        return f"{value:+.2f}"
    if column == "d_z":
        return f"{value:.2f}"
    text = f"{value:.3f}" if value >= 0.0005 else "<0.001"
    return f"**{text}**" if column.endswith("_holm") and value < LEVEL else text


def _words(ranked: Mapping[str, Blocks]) -> list[str]:
    """Say what the ranks say, or why there are none."""
    first = next(iter(ranked.values()))
    lines = ["## Ranks over all blocks", ""]
    blocks, left_out = len(first.values), first.left_out
    counted = f"{blocks} blocks (alpha and seed) have a run of every method"
    if left_out:
        counted += f"; {left_out} in which one is missing are left out"
    lines += [f"{counted}.", ""]
    for name, of_name in ranked.items():
        found = of_name.ranking
        if found is None:
            return [*lines, "Ranks need at least three methods and five such blocks.", ""]
        order = np.argsort(found.mean_ranks, kind="stable")
        ranks = ", ".join(
            f"{method_title(of_name.methods[i])} {found.mean_ranks[i]:.2f}" for i in order
        )
        said = (
            f"By the {TITLES[name]}: {ranks}. Friedman test p = {found.p_value:.3g}; mean ranks "
            f"that lie {found.critical_difference:.2f} or further apart differ (Nemenyi, "
            f"{LEVEL:g})."
        )
        lines += [said, ""]
    return lines
