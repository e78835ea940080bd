"""Which sections the page of a comparison has, and what is not there."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from fedadb_app.comparison.grid import Cell
from fedadb_app.comparison.readings import Reading, mean_curve, reading_of
from fedadb_app.errors import DataError
from fedadb_app.report import charts
from fedadb_app.report.charts import Line
from fedadb_app.report.difference_sections import cost_section, significance_section
from fedadb_app.report.page_parts import Page, Section, rendered, shown, sources
from fedadb_app.report.run_page import heat_map, holdings, method_sections, of_method
from fedadb_app.report.svg import Picture
from fedadb_app.report.tuning_section import tuning_section
from fedadb_app.runs.reader import RunFiles, read_files
from fedadb_app.runs.sections import MethodSection
from fedadb_app.runs.summary import numbers_as_text
from fedadb_app.runs.tables import Table, read_table
from fedadb_app.runs.text_files import read, read_or_note
from strategies.registry import STRATEGIES, method_title


def comparison_page(folder: Path) -> Page:
    """Arrange what a comparison's files, and those of its runs, say."""
    settings = read(folder / "comparison.json", _settings)
    assert settings is not None  # its existence makes the folder a comparison's
    readings, files, notes = _readings(folder)
    faults: dict[str, str] = {}
    table = read_or_note(folder / "comparison.csv", _one_row_per_run, faults)
    prose = read_or_note(folder / "comparison.md", rendered, faults)
    latex = sources(folder, "comparison.tex", faults)
    tests = significance_section(folder, faults)
    tuning = tuning_section(folder, faults)
    notes += faults.values()
    named = {f"{s}-alpha{a}-seed{i}" for s, a, i, *_ in (table.rows if table else ())}
    there = {r.cell.name for r in readings}
    for name in sorted(named - there):
        notes.append(f"{name} is named in comparison.csv, but does not count.")
    if there - named:
        notes.append(
            f"The tables lack {', '.join(sorted(there - named))}: the `fedadb compare` that made "
            f"these runs writes comparison.csv and comparison.md anew."
        )
    sections = [
        Section(
            "Side by side",
            lead="" if readings else "No run has completed yet.",
            prose=prose or Markup(),
            tables={"Every run (comparison.csv)": table} if table else {},
            sources=latex,
        ),
        *tests,
        *tuning,
    ]
    for alpha in sorted({r.cell.alpha for r in readings}):
        of_alpha = [r for r in readings if r.cell.alpha == alpha]
        side_by_side, faults_of_methods = _side_by_side(of_alpha, files)
        sections += side_by_side
        notes += faults_of_methods
    sections.append(
        Section("Configuration of all runs", values={k: shown(v) for k, v in settings.items()})
    )
    if notes:
        sections.append(Section("What is not here", notes=notes))
    config = settings["run-config"]
    cells = [reading.cell for reading in readings]
    methods = dict.fromkeys(cell.strategy for cell in cells)
    return Page(
        folder=folder,
        title=f"Comparison on {Path(config['dataset']).stem}",
        status="",
        subtitle=[", ".join(method_title(name) for name in methods)],
        tiles=[
            ("methods", str(len(methods))),
            ("complete runs", str(len(readings))),
            ("seed", ", ".join(dict.fromkeys(str(cell.seed) for cell in cells))),
            ("alpha", ", ".join(dict.fromkeys(f"{cell.alpha:g}" for cell in cells))),
            ("clients", settings["federation"]["num_supernodes"]),
            ("rounds", config["num-server-rounds"]),
        ],
        sections=sections,
    )


def _settings(text: str) -> dict[str, Any]:
    content = numbers_as_text(text)
    _ = content["run-config"]["dataset"], content["run-config"]["num-server-rounds"]
    _ = content["federation"]["num_supernodes"]
    return content


def _one_row_per_run(text: str) -> Table:
    table = read_table(text)
    if table.header[:3] != ["strategy", "alpha", "seed"]:
        raise ValueError("its columns do not begin with strategy, alpha and seed")
    return table


def _readings(folder: Path) -> tuple[list[Reading], Mapping[Cell, RunFiles], list[str]]:
    """Return the complete runs, their files, and what of them is missing.

    The runs are by seed and in the registry's order.
    """
    readings: list[Reading] = []
    files_of: dict[Cell, RunFiles] = {}
    notes: list[str] = []
    for path in sorted((folder / "runs").glob("*/")):
        try:
            files = read_files(path)
            summary = files.summary
            if summary["status"] != "completed":
                notes.append(f"runs/{path.name} did not complete and does not count.")
                continue
            cell = Cell(summary["strategy"], float(summary["alpha"]), int(summary["seed"]))
            if cell.name != path.name:
                raise DataError(f"its summary.json is that of {cell.name}")
            readings.append(reading_of(cell, files))
            files_of[cell] = files
            notes += files.faults.values()
        except DataError as error:
            notes.append(f"runs/{path.name} does not count: {error}")
        except (KeyError, ValueError, TypeError) as error:
            notes.append(f"runs/{path.name}: whose it is, summary.json does not say ({error})")
    usual = [rounds for rounds, _ in Counter(r.rounds for r in readings).most_common(1)]
    for reading in readings:
        if reading.rounds not in usual:
            notes.append(f"runs/{reading.cell.name} does not count: it has other rounds than most.")
    position = {name: number for number, name in enumerate(STRATEGIES)}
    readings = sorted(
        (r for r in readings if r.rounds in usual),
        key=lambda r: (r.cell.seed, r.cell.alpha, position.get(r.cell.strategy, len(position))),
    )
    return readings, files_of, notes


def _side_by_side(
    readings: Sequence[Reading], files: Mapping[Cell, RunFiles]
) -> tuple[list[Section], list[str]]:
    """Return the sections on the runs of one alpha, and what of those shown cannot be read."""
    methods: dict[str, list[Reading]] = {}
    for reading in readings:
        methods.setdefault(method_title(reading.cell.strategy), []).append(reading)
    suffix = f", alpha = {readings[0].cell.alpha:g}"
    failures = sum(r.failures for r in readings)
    first_runs = {title: files[rs[0].cell] for title, rs in methods.items()}
    own = {title: of_method(run) for title, run in first_runs.items()}
    sections = [
        Section(
            f"Accuracy over rounds{suffix}",
            lead=(
                "Each method's mean over seeds, thin; smoothed as in the paper (factor 0.2), bold, "
                "before the others in grey. The band is the range over seeds."
            ),
            pictures=_curves(methods),
        ),
        *_first_runs(methods, first_runs, own, suffix),
        Section(
            f"Failures, time and bytes{suffix}",
            lead=f"{failures} failures of clients in {len(readings)} runs.",
            pictures=_mean_costs(methods),
        ),
        cost_section(methods, files, suffix),
    ]
    return sections, [fault for section in own.values() if section for fault in section.faults]


def _curves(methods: Mapping[str, Sequence[Reading]]) -> list[Picture]:
    means = {
        title: Line(title, *(np.array(part, float) for part in mean_curve(rs)))
        for title, rs in methods.items()
    }
    highest = 1.05 * max(max(r.accuracies) for rs in methods.values() for r in rs)
    return [
        charts.accuracy_of_method(
            title,
            [Line(title, np.array(r.rounds, float), np.array(r.accuracies)) for r in rs],
            [line for other, line in means.items() if other != title],
            highest,
        )
        for title, rs in methods.items()
    ]


def _first_runs(
    methods: Mapping[str, Sequence[Reading]],
    runs: Mapping[str, RunFiles],
    own: Mapping[str, MethodSection | None],
    suffix: str,
) -> list[Section]:
    """Return the sections on each method's first run, which need not have the same seed."""
    seeds = {title: f"seed {rs[0].cell.seed}" for title, rs in methods.items()}
    strips = [
        heat_map(run.class_accuracy, f"{title}, {seeds[title]}", wide=False)
        for title, run in runs.items()
        if run.class_accuracy is not None and run.class_accuracy.rows
    ]
    first, *_ = methods
    held = holdings(runs[first])
    classes = Section(
        f"Accuracy per class{suffix}",
        lead="Dark is 0 %, bright is 100 %. A row that goes dark is a class being forgotten.",
        pictures=strips,
    )
    return [
        classes,
        replace(held, title=f"{held.title}{suffix}, {seeds[first]}"),
        *(
            replace(
                section,
                title=f"{section.title} of {title}{suffix}, {seeds[title]}",
            )
            for title, run in runs.items()
            for section in method_sections(run, own[title])
        ),
    ]


def _mean_costs(methods: Mapping[str, Sequence[Reading]]) -> list[Picture]:
    return [
        charts.bars(
            name,
            unit,
            {t: float(np.mean([getattr(r, column) for r in rs])) for t, rs in methods.items()},
        )
        for name, unit, column in (
            ("Seconds per round", "s", "seconds_per_round"),
            ("Bytes per round, both ways", "MB", "megabytes_per_round"),
        )
    ]
