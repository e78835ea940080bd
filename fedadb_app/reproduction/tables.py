"""The paper's tables from complete runs, each number beside the paper's and the difference."""

import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedadb_app.analysis import convergence
from fedadb_app.comparison.readings import Reading, mean_curve
from fedadb_app.comparison.tables import mean_and_std
from fedadb_app.reproduction.entries import Entry, Study
from fedadb_app.reproduction.paper import reported
from fedadb_app.reproduction.settings import DATASETS
from strategies.registry import method_title


@dataclass(frozen=True)
class Result:
    """The complete runs of an entry, one a seed, and their folders; none is an empty cell."""

    entry: Entry
    readings: Sequence[Reading]
    folders: Sequence[Path]

    @property
    def best5(self) -> Sequence[float]:
        """The mean of the five best rounds, percent, of each seed."""
        return [reading.best5 for reading in self.readings]


@dataclass(frozen=True)
class Number:
    """A number of ours over seeds, and the paper's: not a number where it says "–"."""

    row: str
    column: str
    values: Sequence[float]
    paper: float | None
    paper_deviation: float | None = None
    decimals: int = 2
    wanted: int = 0
    """Of how many seeds; 0 where it is none's."""

    @property
    def mean(self) -> float:
        """Over seeds; not a number without a run."""
        return statistics.mean(self.values) if self.values else math.nan

    @property
    def deviation(self) -> float:
        """The sample standard deviation over seeds; not a number below two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else math.nan

    @property
    def shown(self) -> str:
        """Ours, then the paper's and the difference in brackets."""
        ours = "∞" if math.isinf(self.mean) else "–"
        if math.isfinite(self.mean):
            ours = mean_and_std(self.values, self.decimals)
            if len(self.values) < self.wanted:
                ours += f" [{len(self.values)} of {self.wanted} seeds]"
        if self.paper is None:
            return ours
        paper = "–" if math.isnan(self.paper) else f"{self.paper:.{self.decimals}f}"
        if not math.isfinite(self.mean - self.paper):
            return f"{ours} ({paper})"
        return f"{ours} ({paper}, {self.mean - self.paper:+.{self.decimals}f})"


def accuracies(results: Sequence[Result], seeds: int) -> list[Number]:
    """Return each entry's mean of the five best rounds, of so many seeds."""
    return [
        Number(
            r.entry.row,
            r.entry.column,
            r.best5,
            None if r.entry.reported is None else r.entry.reported.value,
            None if r.entry.reported is None else r.entry.reported.deviation,
            wanted=seeds,
        )
        for r in results
    ]


def rounds_to_targets(results: Sequence[Result]) -> Mapping[str, list[Number]]:
    """Return Table 2: per column, the round in which each method's mean curve reaches a target.

    The targets are 45, 65 and 85 % of the best accuracy of any method here, and the paper's own,
    where it has some for the column; never reached is no value.
    """
    found: dict[str, list[Number]] = {}
    for column in dict.fromkeys(r.entry.column for r in results):
        there = [r for r in results if r.entry.column == column and r.readings]
        if not there:
            continue
        curves = {r.entry.row: mean_curve(r.readings) for r in there}
        paper = {
            (row, float(place.rpartition(" ")[2])): number.value
            for (item, _, row, place), number in reported().items()
            if item == "table2" and place.rpartition(" ")[0] == column
        }
        targets = [
            (f"{target:.1f} %", target) for target in convergence.targets_of(curves.values())
        ]
        targets += [(f"paper's {t:g} %", t) for t in sorted({t for _, t in paper})]
        reached = convergence.rounds_to_targets(curves, [target for _, target in targets])
        found[column] = [
            Number(
                row,
                label,
                [] if number is None else [number],
                paper.get((row, target), math.nan) if label.startswith("paper") else None,
                decimals=0,
            )
            for row, numbers in reached.items()
            for (label, target), number in zip(targets, numbers, strict=True)
        ]
    return found


def title_of(label: str) -> str:
    """Return how the paper writes a method or a data set; other labels stay."""
    name, _, alpha = label.partition(" ")
    if name in DATASETS:
        return f"{DATASETS[name]}, α = {alpha}" if alpha else DATASETS[name]
    return method_title(label)


def as_markdown(numbers: Sequence[Number]) -> list[str]:
    """Return the lines of a table."""
    columns = list(dict.fromkeys(n.column for n in numbers))
    rows = list(dict.fromkeys(n.row for n in numbers))
    cells = {(n.row, n.column): n for n in numbers}
    lines = [
        "| | " + " | ".join(title_of(column) for column in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for row in rows:
        shown = [cells[row, c].shown if (row, c) in cells else "" for c in columns]
        lines.append(f"| {title_of(row)} | " + " | ".join(shown) + " |")
    return lines


def write_csv(path: Path, sections: Mapping[str, Sequence[Number]]) -> None:
    """Write a line a number."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            [
                "section",
                "row",
                "column",
                "runs",
                "ours",
                "deviation",
                "paper",
                "paper_deviation",
                "difference",
            ]
        )
        for section, numbers in sections.items():
            for n in numbers:
                paper = math.nan if n.paper is None else n.paper
                spread = math.nan if n.paper_deviation is None else n.paper_deviation
                values = (n.mean, n.deviation, paper, spread, n.mean - paper)
                shown = ["" if math.isnan(v) else f"{v:.{n.decimals}f}" for v in values]
                writer.writerow([section, n.row, n.column, len(n.values), *shown])


def write_page(
    path: Path,
    study: Study,
    sections: Mapping[str, Sequence[Number]],
    explained: str,
    pictures: Iterable[Path] = (),
) -> None:
    """Write a table's or figure's page: what it is, what was changed, the numbers, the pictures."""
    text = [f"# {study.heading}: {study.title}", ""]
    if study.differences:
        text += [f"Otherwise than in the paper: {study.differences}", ""]
    text += [f"{explained} Seeds: {', '.join(map(str, study.seeds))}.", ""]
    for section, numbers in sections.items():
        text += [*([f"## {section}", ""] if section else []), *as_markdown(numbers), ""]
    text += [f"![{study.title}]({picture.name})\n" for picture in pictures]
    path.write_text("\n".join(text), encoding="utf-8")
