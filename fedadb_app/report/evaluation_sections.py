"""Sections of a run's page on what its models say of images: the test part's, and each site's."""

from collections.abc import Mapping

import numpy as np

from fedadb_app.analysis.evaluated import INTERVALS, THRESHOLDS
from fedadb_app.errors import DataError
from fedadb_app.report import charts, evaluation_charts
from fedadb_app.report.charts import Line
from fedadb_app.report.page_parts import Section, sources
from fedadb_app.report.svg import Picture
from fedadb_app.runs.predictions import PREDICTIONS, Predictions
from fedadb_app.runs.reader import RunFiles
from fedadb_app.runs.sites import SITES
from fedadb_app.runs.tables import Floats, Table, read_table
from fedadb_app.runs.text_files import read_or_note


def evaluation_section(run: RunFiles) -> tuple[list[Section], list[str]]:
    """Return the section, and a sentence for each file that is not there or cannot be read."""
    faults: dict[str, str] = {}
    notes: list[str] = []
    tables = {
        f"{title} ({name})": table
        for name, title in ((INTERVALS, "Test metrics"), (THRESHOLDS, "Two classes, threshold"))
        if (table := read_or_note(run.folder / name, read_table, faults)) is not None
    }
    if not (run.folder / INTERVALS).exists():
        notes.append(f"{INTERVALS} is not there: `fedadb evaluate` writes it, from {PREDICTIONS}.")
    latex = [sources(run.folder, f"{name[:-4]}.tex", faults) for name in (INTERVALS, THRESHOLDS)]
    pictures: list[Picture] = []
    try:
        predictions = Predictions.read(run.folder)
        if predictions is None:
            notes.append(f"{PREDICTIONS} is not there: a run whose server evaluates ends with it.")
        else:
            pictures = _pictures(predictions, run)
    except DataError as error:
        faults[PREDICTIONS] = str(error)
    if not pictures and not tables:
        return [], [*faults.values(), *notes]
    lead = "What the models say of the test images, each image for the most probable class."
    section = Section(
        "Test images",
        lead=lead,
        pictures=pictures,
        tables=_filled(tables),
        sources={name: text for found in latex for name, text in found.items()},
    )
    return [section], [*faults.values(), *notes]


_OVER_SITES = {
    "worst-site": ("the worst site", " %"),
    "worst-tenth": ("mean of the worst tenth of the sites", " %"),
    "spread": ("standard deviation over sites", " points"),
}


def sites_section(run: RunFiles) -> tuple[list[Section], list[str]]:
    """Return the section on what sites found on their held-out images, and what is damaged.

    There is none where clients do not evaluate.
    """
    try:
        table = run.sites()
    except DataError as error:
        return [], [str(error)]
    rows = [] if table is None else [dict(zip(table.header, r, strict=True)) for r in table.rows]
    whole = [row for row in rows if not row["class"]]
    if table is None or not whole:
        return [], []
    last = int(whole[0]["round"])
    worst = min(whole, key=lambda row: float(row["accuracy"]))
    said = f"site {worst['site']}, {worst['accuracy']} % of {worst['images']} images"
    values = {"the worst site": said}
    over = {name: run.metric("clients", name) for name in _OVER_SITES}
    for name, (title, unit) in _OVER_SITES.items():
        if name != "worst-site" and last in over[name]:
            values[title] = f"{over[name][last]:.6g}{unit}"
    values["sites"] = str(len(whole))
    curves = [
        Line(label, *_course(run.metric("clients", name)))
        for name, label in (
            ("accuracy", "all images together"),
            ("worst-tenth", "worst tenth"),
            ("worst-site", "worst site"),
        )
    ]
    pictures = [charts.lines("Accuracy over sites", "%", curves)] if over["worst-site"] else []
    columns = [name for name in table.header if name not in ("round", "class")]
    tables = {f"Each site ({SITES})": Table(columns, [[row[c] for c in columns] for row in whole])}
    of_classes = [row for row in table.rows if row[table.header.index("class")]]
    if of_classes:
        tables[f"Classes of the sites whose nodes tell them ({SITES})"] = Table(
            table.header, of_classes
        )
    lead = (
        f"What each site found on images of its own that it does not train on, after round {last}. "
        f"Of few images a site's number says little, and the worst of many sites is low by chance."
    )
    section = Section("Sites", lead=lead, values={"": values}, pictures=pictures, tables=tables)
    return [section], []


def _course(by_round: Mapping[int, float]) -> tuple[Floats, Floats]:
    return np.array(list(by_round), np.float64), np.array(list(by_round.values()), np.float64)


def _filled(tables: Mapping[str, Table]) -> dict[str, Table]:
    return {name: table for name, table in tables.items() if table.rows}


def _pictures(predictions: Predictions, run: RunFiles) -> list[Picture]:
    """Draw the final model's images and the chosen one's.

    Raises
    ------
    DataError
        If the run has other classes.
    """
    models = {f"last round, {predictions.final_round}": predictions.final}
    if predictions.chosen is not None:
        models[f"chosen round, {predictions.chosen_round}"] = predictions.chosen
    classes, labels = predictions.final.shape[1], predictions.labels
    names = run.class_names or [f"class {c}" for c in range(classes)]
    if len(names) != classes:
        raise DataError(f"{run.folder / PREDICTIONS} has {classes} classes, the run {len(names)}")
    pictures = [
        evaluation_charts.confusion(f"Confusion matrix, {name}", labels, p, names)
        for name, p in models.items()
    ]
    finite = {name: p for name, p in models.items() if np.isfinite(p).all()}
    if finite and classes == 2 and len(np.unique(labels)) == 2:
        pictures.append(evaluation_charts.roc(labels, finite))
        pictures.append(evaluation_charts.precision_recall(labels, finite))
    if finite:
        pictures.append(evaluation_charts.reliability(labels, finite))
    return pictures
