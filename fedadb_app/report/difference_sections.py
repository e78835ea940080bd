"""Sections of a comparison's page: whether its methods differ, and what accuracy costs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedadb_app.analysis.significance import Ranking
from fedadb_app.comparison.differences import RANKS, SIGNIFICANCE, TITLES
from fedadb_app.comparison.grid import Cell
from fedadb_app.comparison.readings import Reading
from fedadb_app.report import difference_charts
from fedadb_app.report.charts import Line
from fedadb_app.report.page_parts import Section, rendered, sources
from fedadb_app.report.svg import Picture
from fedadb_app.runs.reader import RunFiles
from fedadb_app.runs.tables import SECONDS, Table, read_table
from fedadb_app.runs.text_files import read_or_note
from strategies.registry import method_title


def significance_section(folder: Path, faults: dict[str, str]) -> list[Section]:
    """Return the section on what the tests say; none where they have not been made."""
    prose = read_or_note(folder / "significance.md", rendered, faults)
    table = read_or_note(folder / SIGNIFICANCE, _tests, faults)
    ranks = read_or_note(folder / RANKS, _ranks, faults)
    if prose is None and table is None:
        return []
    pictures = [] if ranks is None else _diagrams(ranks)
    pictures += [] if table is None else _matrices(table)
    tables = {"All tests (significance.csv)": table, "Ranks (ranks.csv)": ranks}
    return [
        Section(
            "Do the methods differ?",
            lead="In the matrices * is a difference with p < 0.05 in the paired t-test, after "
            "Holm's correction over all pairs.",
            prose=prose or rendered(""),
            pictures=pictures,
            tables={name: found for name, found in tables.items() if found and found.rows},
            sources=sources(folder, "significance.tex", faults),
        )
    ]


def cost_section(
    methods: Mapping[str, Sequence[Reading]], files: Mapping[Cell, RunFiles], suffix: str
) -> Section:
    """Return the section on accuracy over bytes and over seconds, each method's mean over seeds."""
    pictures = [
        difference_charts.accuracy_over(
            f"Accuracy over {name}",
            unit,
            {
                title: Line(
                    title,
                    np.mean([spent(files[r.cell], columns) for r in rs], axis=0) / scale,
                    np.mean([r.accuracies for r in rs], axis=0),
                )
                for title, rs in methods.items()
            },
        )
        for name, unit, columns, scale in COSTS
    ]
    lead = "Each method's accuracy, mean over seeds, by what had been spent when it was reached."
    return Section(f"What accuracy costs{suffix}", lead=lead, pictures=pictures)


COSTS = (
    ("bytes, both ways", "MB", ("bytes_down", "bytes_up"), 1e6),
    ("seconds", "s", SECONDS, 1.0),
)
"""What is spent, in what unit, the columns of ``rounds.csv`` that add up to it, and their scale."""


def spent(run: RunFiles, columns: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return what a run had spent by the end of each evaluated round."""
    total = np.cumsum(sum(run.rounds.numbers(column) for column in columns))
    evaluated: np.ndarray[tuple[int], np.dtype[np.float64]] = total[
        ~np.isnan(run.rounds.numbers("accuracy"))
    ]
    return evaluated


def _tests(text: str) -> Table:
    return _with_numbers(text, ("mean_difference", "t_holm"))


def _ranks(text: str) -> Table:
    return _with_numbers(text, ("mean_rank", "critical_difference", "friedman_p", "blocks"))


def _with_numbers(text: str, columns: Sequence[str]) -> Table:
    table = read_table(text)
    table.require(columns)
    for column in columns:
        table.numbers(column)
    return table


def _diagrams(ranks: Table) -> list[Picture]:
    pictures = []
    for statistic, rows in _by(ranks, ("statistic",)).items():
        names = [method_title(row["method"]) for row in rows]
        found = Ranking(
            np.array([float(row["mean_rank"]) for row in rows]),
            float(rows[0]["friedman_p"]),
            float(rows[0]["critical_difference"]),
            int(rows[0]["blocks"]),
        )
        title = TITLES.get(statistic[0], statistic[0])
        pictures.append(difference_charts.critical_difference(f"Ranks: {title}", names, found))
    return pictures


def _matrices(tests: Table) -> list[Picture]:
    pictures = []
    for (statistic, alpha, family), rows in _by(tests, ("statistic", "alpha", "family")).items():
        if family != "pairs":
            continue
        methods = list(dict.fromkeys(row[end] for row in rows for end in ("method", "against")))
        differences = np.full((len(methods), len(methods)), np.nan)
        p_values = differences.copy()
        for row in rows:
            i, j = methods.index(row["method"]), methods.index(row["against"])
            difference = float(row["mean_difference"] or "nan")
            differences[i, j], differences[j, i] = difference, -difference
            p_values[i, j] = p_values[j, i] = float(row["t_holm"] or "nan")
        caption = f"{TITLES.get(statistic, statistic)}, alpha = {alpha}".capitalize()
        names = [method_title(name) for name in methods]
        pictures.append(
            difference_charts.significance_matrix(caption, names, differences, p_values)
        )
    return pictures


def _by(table: Table, columns: Sequence[str]) -> dict[tuple[str, ...], list[dict[str, str]]]:
    """Return the rows by what some columns say."""
    found: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in table.rows:
        named = dict(zip(table.header, row, strict=True))
        found.setdefault(tuple(named[column] for column in columns), []).append(named)
    return found
