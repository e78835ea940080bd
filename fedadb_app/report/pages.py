"""Which sections the page of a run and the page of a comparison have, and what is not there."""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup
from PIL import Image
from torch import Tensor

from fedadb_app.comparison.grid import Cell, is_complete
from fedadb_app.comparison.tables import Reading, mean_curve, read_run
from fedadb_app.data.preparation import preparation_of
from fedadb_app.dual_branch import dynamic_beta
from fedadb_app.errors import DataError
from fedadb_app.report import charts
from fedadb_app.report.charts import Line, Picture
from fedadb_app.report.files import (
    Floats,
    RunFiles,
    Table,
    numbers_as_text,
    read,
    read_files,
    read_table,
)

_SHOWN_ROUNDS = 6  # whose anchors are shown
_PARTS = ("anchors", "train", "aggregate", "evaluate")


@dataclass(frozen=True)
class AnchorImage:
    """A class anchor: its PNG as a data URL, its class, its confidence as text."""

    source: str
    name: str
    confidence: str


@dataclass(frozen=True)
class Section:
    """A part of the page, in the order in which it is shown."""

    title: str
    lead: str = ""
    prose: Markup = field(default_factory=Markup)
    anchors: Mapping[str, Sequence[AnchorImage]] = field(default_factory=dict)
    pictures: Sequence[Picture] = ()
    notes: Sequence[str] = ()
    tables: Mapping[str, Table] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """What the template shows."""

    folder: Path
    title: str
    status: str
    subtitle: Sequence[str]
    tiles: Sequence[tuple[str, str]]
    sections: Sequence[Section]


def write_report(folder: Path, titles: Mapping[str, str], path: Path) -> None:
    """Write the page about a run's or a comparison's folder.

    Parameters
    ----------
    folder : Path
        What it is about.
    titles : Mapping[str, str]
        Method name -> how papers write it.
    path : Path
        The HTML file.

    Raises
    ------
    DataError
        If the folder is neither, a file in it is damaged, or the page cannot be written.
    """
    if (folder / "comparison.json").exists():
        page = comparison_page(folder, titles)
    elif (folder / "summary.json").exists():
        page = run_page(folder, titles)
    else:
        raise DataError(
            f"{folder} is neither a run's folder (no summary.json) nor a comparison's "
            f"(no comparison.json)"
        )
    environment = Environment(
        loader=PackageLoader("fedadb_app", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    text = environment.get_template("page.html.j2").render(page=page)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}") from error


def run_page(folder: Path, titles: Mapping[str, str]) -> Page:
    """Arrange what one run's files say."""
    run = read_files(folder)
    summary = run.summary
    status = str(summary["status"])
    has_alpha = "alpha" in (run.partition or {})  # the summary names it whatever the rule
    identifying = ("clients", "alpha", "seed") if has_alpha else ("clients", "seed")
    subtitle = [
        " · ".join(f"{key} {summary[key]}" for key in identifying if key in summary),
        *([f"The run {status}: {summary['reason']}"] if "reason" in summary else []),
    ]
    if status == "running":
        subtitle.append("The run has not ended; this page shows the rounds that have.")
    sections = [
        _learning(run),
        _classes(run),
        _holdings(run),
        *_anchors(run),
        _costs(run),
        Section("Configuration", values=_grouped(run.config)),
    ]
    missing = list(_missing(run))
    if missing:
        sections.append(Section("What is not here", notes=missing))
    strategy = str(summary.get("strategy", "run"))
    return Page(
        folder=folder,
        title=f"{titles.get(strategy, strategy)} on {Path(str(summary.get('dataset', '?'))).stem}",
        status=status,
        subtitle=subtitle,
        tiles=[
            *(
                (label, f"{summary[key]} %")
                for key, label in (
                    ("final_accuracy", "final accuracy"),
                    ("best5_accuracy", "mean of the five best rounds"),
                    ("last50_accuracy", "mean of the last 50 rounds"),
                )
                if summary.get(key) is not None
            ),
            ("rounds", f"{summary['rounds']} of {run.num_rounds}"),
            ("seconds", str(summary["seconds"])),
            ("failures of clients", str(run.rounds.total("failures"))),
        ],
        sections=sections,
    )


def comparison_page(folder: Path, titles: Mapping[str, str]) -> Page:
    """Arrange what a comparison's files, and those of its runs, say."""
    settings = read(folder / "comparison.json", _settings)
    assert settings is not None  # its existence makes the folder a comparison's
    rows = read(folder / "comparison.csv", read_table) or Table([], [])
    tables = read(folder / "comparison.md", _markdown) or Markup()
    cells = [_cell(folder, rows, row) for row in rows.rows]
    readings, notes = [], []
    for cell in cells:
        try:
            readings.append(read_run(cell, folder / "runs" / cell.name))
        except DataError as error:
            notes.append(f"{cell.name} is named in comparison.csv, but: {error}")
    sections = [
        Section(
            "Side by side",
            lead="" if cells else "No run has completed yet.",
            prose=tables,
            tables={"Every run (comparison.csv)": rows} if cells else {},
        )
    ]
    for alpha in sorted({r.cell.alpha for r in readings}):
        of_alpha = [r for r in readings if r.cell.alpha == alpha]
        sections += _side_by_side(folder, of_alpha, titles)
    sections.append(
        Section("Configuration of all runs", values={k: _shown(v) for k, v in settings.items()})
    )
    incomplete = sorted(
        path.name for path in (folder / "runs").glob("*") if path.is_dir() and not is_complete(path)
    )
    notes += [f"runs/{name} did not complete and does not count." for name in incomplete]
    if notes:
        sections.append(Section("What is not here", notes=notes))
    config = settings["run-config"]
    methods = dict.fromkeys(cell.strategy for cell in cells)
    return Page(
        folder=folder,
        title=f"Comparison on {Path(config['dataset']).stem}",
        status="",
        subtitle=[", ".join(titles.get(name, name) for name in methods)],
        tiles=[
            ("methods", str(len(methods))),
            ("complete runs", str(len(readings))),
            ("seeds", ", ".join(dict.fromkeys(str(cell.seed) for cell in cells))),
            ("alpha", ", ".join(dict.fromkeys(f"{cell.alpha:g}" for cell in cells))),
            ("clients", settings["federation"]["num_supernodes"]),
            ("rounds", config["num-server-rounds"]),
        ],
        sections=sections,
    )


# --- one run --------------------------------------------------------------------------------


def _learning(run: RunFiles) -> Section:
    rounds, accuracies = _known(run.rounds, "accuracy")
    pictures = [charts.accuracy_curve(rounds, accuracies)] if len(rounds) else []
    losses = [Line("test", *_known(run.rounds, "loss"))]
    losses.append(Line("clients' training, mean", *run.diagnostic("train_loss")))
    losses = [line for line in losses if len(line.rounds)]
    if losses:
        pictures.append(charts.lines("Loss", "cross-entropy", losses))
    names = [] if run.diagnostics is None else [row[1] for row in run.diagnostics.rows]
    for name in dict.fromkeys(names):
        if name != "train_loss":
            caption = name.replace("_", " ")
            pictures.append(charts.lines(caption, "", [Line(name, *run.diagnostic(name))]))
    epsilon = Line("epsilon", *_known(run.rounds, "epsilon"))
    if len(epsilon.rounds):
        pictures.append(charts.lines("Privacy spent", "epsilon", [epsilon]))
    tables = {"Every round (rounds.csv)": run.rounds}
    if run.diagnostics is not None:
        tables["Diagnostics (diagnostics.csv)"] = run.diagnostics
    return Section("Learning", pictures=pictures, tables=tables)


def _classes(run: RunFiles) -> Section:
    table = run.class_accuracy
    if table is None or not table.rows:
        return Section("Accuracy per class", lead="No accuracy per class was measured.")
    return Section(
        "Accuracy per class",
        pictures=[_heat_map(table, "Accuracy per class", wide=True)],
        tables={"Every evaluated round (class_accuracy.csv)": table},
    )


def _heat_map(table: Table, caption: str, wide: bool) -> Picture:
    names = table.header[1:]
    values = np.array([[float(cell or "nan") for cell in row[1:]] for row in table.rows])
    return charts.class_heat_map(caption, table.numbers("round"), values, names, wide)


def _holdings(run: RunFiles) -> Section:
    title = "Who holds what"
    if run.partition is None:
        return Section(title, lead="partition.json is not there.")
    sizes = np.array([client["size"] for client in run.partition["clients"]])
    picture = charts.holdings(sizes, run.class_counts(), run.class_names)
    if run.class_counts() is None:
        lead = "The nodes hold their own data; which classes, only they know."
    else:
        settings = [
            f", {key.replace('_', ' ')} {run.partition[key]}"
            for key in ("alpha", "classes_per_client")
            if key in run.partition
        ]
        lead = f"Rule {run.partition['rule']}{''.join(settings)}."
    return Section(title, lead=lead, pictures=[picture])


def _anchors(run: RunFiles) -> list[Section]:
    """Return the section on class anchors, if the run has any."""
    rounds, quality = _known(run.rounds, "anchor_quality")
    pictures = []
    if len(rounds):
        tau = Line("tau", rounds, quality)
        pictures.append(charts.lines("Anchor quality τ", "mean confidence", [tau], from_zero=True))
    weights = _beta(run)
    if weights:
        pictures.append(charts.lines("Weight β of the local branch", "β", weights, from_zero=True))
    images = {f"Round {t}": list(_anchor_images(run, t)) for t in spread(list(run.anchors))}
    if not (images or pictures):
        return []
    lead = "Inputs optimised on the global model that the round began with." if images else ""
    if weights:
        lead += (
            f" β = (t/T)^(γ τ) with T = {run.num_rounds} depends on γ, the share of classes that "
            f"a client lacks."
        )
        if run.class_counts() is not None:
            lead += " The curves are those of the clients that lack least, the median, and most."
    return [Section("Class anchors", lead=lead.strip(), anchors=images, pictures=pictures)]


def _beta(run: RunFiles) -> list[Line]:
    """Return dynamic beta over rounds for some numbers of lacking classes, where it was used."""
    own = run.config.get("fedadb", {})
    rounds, quality = _known(run.rounds, "anchor_quality")
    classes, counts = len(run.class_names), run.class_counts()
    if own.get("beta") != "dynamic" or not own.get("use-lcb") or not (len(rounds) and classes):
        return []
    if counts is None:
        lacking = [0, classes // 2, classes - 1]
    else:
        of_clients = np.sort((counts == 0).sum(axis=1))
        lacking = [int(of_clients[i]) for i in (0, len(of_clients) // 2, -1)]
    return [
        Line(
            f"lacks {m} of {classes} classes",
            rounds,
            np.array(
                [
                    dynamic_beta(int(t), run.num_rounds, m / classes, tau)
                    for t, tau in zip(rounds, quality, strict=True)
                ]
            ),
        )
        for m in dict.fromkeys(lacking)
    ]


def spread(rounds: Sequence[int]) -> Sequence[int]:
    """Choose some rounds, evenly, the first and the last among them."""
    chosen = np.linspace(0, len(rounds) - 1, min(_SHOWN_ROUNDS, len(rounds))).round().astype(int)
    return [rounds[i] for i in chosen]


def _anchor_images(run: RunFiles, server_round: int) -> Iterable[AnchorImage]:
    anchors, names = run.anchors[server_round], run.class_names
    preparation = preparation_of(str(run.config.get("dataset", "")))
    labels, confidences = anchors["labels"].tolist(), anchors["confidences"].numpy()
    for image, label, confidence in zip(anchors["images"], labels, confidences, strict=True):
        name = names[label] if label < len(names) else f"class {label}"
        yield AnchorImage(_png(preparation.to_pixels(image)), name, str(confidence))


def _png(pixels: Tensor) -> str:
    """Write uint8 pixels, ``(1 or 3, height, width)``, as a data URL."""
    rows = pixels.permute(1, 2, 0).numpy()
    picture = Image.fromarray(rows[:, :, 0] if rows.shape[2] == 1 else rows)
    file = io.BytesIO()
    picture.save(file, "png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _costs(run: RunFiles) -> Section:
    table = run.rounds
    title = "Failures, time and bytes"
    if not table.rows:
        return Section(title, lead="No round has ended.")
    rounds = table.numbers("round")
    failures = table.numbers("failures")
    down, up = table.numbers("bytes_down") / 1e6, table.numbers("bytes_up") / 1e6
    pictures = [
        charts.stacked_seconds(rounds, {p: table.numbers(f"seconds_{p}") for p in _PARTS}),
        charts.lines(
            "Bytes per round",
            "MB",
            [Line("down", rounds, down), Line("up", rounds, up)],
            from_zero=True,
        ),
    ]
    if failures.any():
        pictures.append(charts.bars_over_rounds("Failures of clients", "clients", rounds, failures))
    lead = (
        f"{table.total('clients')} usable answers of clients over {len(rounds)} rounds, "
        f"{table.total('failures')} failures; {table.total('bytes_down')} bytes to the clients, "
        f"{table.total('bytes_up')} bytes back."
    )
    return Section(title, lead=lead, pictures=pictures)


def _missing(run: RunFiles) -> Iterable[str]:
    yield from run.damaged
    if not run.config:
        yield "config.toml is not there: no configuration, and T is taken to be the rounds so far."
    if not run.rounds.rows:
        yield "No round has ended: there is nothing to draw over rounds."
    elif not len(_known(run.rounds, "accuracy")[0]):
        yield "No round was evaluated: no accuracy and no test loss."
    if run.class_accuracy is None:
        yield "class_accuracy.csv is not there: only a server that evaluates writes it."
    if not run.anchors:
        yield (
            "anchors.safetensors is not there: the method makes no class anchors, or the run has "
            "not come to its end."
        )
    elif len(run.anchors) == 1:
        yield "The anchors of earlier rounds: snapshot-every keeps them."
    own = run.config.get("fedadb")
    if own:
        if not own["use-lcb"]:
            yield "The weight β: use-lcb=false leaves the local branch out."
        elif own["beta"] != "dynamic":
            yield f"β over rounds: it is fixed at {own['beta']}."
        elif not own["use-anchors"]:
            yield "β over rounds: without anchors τ = 0, so it is 1 for every client."
        else:
            yield (
                "The β that each client used: it is computed on the client and never leaves it. "
                "The curves follow from τ and a number of lacking classes."
            )


def _known(table: Table, column: str) -> tuple[Floats, Floats]:
    """Return the rounds in which a column has a value, and the values."""
    rounds, values = table.numbers("round"), table.numbers(column)
    known = ~np.isnan(values)
    return rounds[known], values[known]


# --- a comparison ---------------------------------------------------------------------------


def _settings(text: str) -> dict[str, Any]:
    content = numbers_as_text(text)
    _ = content["run-config"]["dataset"], content["run-config"]["num-server-rounds"]
    _ = content["federation"]["num_supernodes"]
    return content


def _markdown(text: str) -> Markup:
    body = text.partition("\n")[2]  # the page has its own title
    return Markup(MarkdownIt("commonmark", {"html": False}).enable("table").render(body))


def _cell(folder: Path, table: Table, row: Sequence[str]) -> Cell:
    values = dict(zip(table.header, row, strict=True))
    try:
        return Cell(values["strategy"], float(values["alpha"]), int(values["seed"]))
    except (KeyError, ValueError) as error:
        raise DataError(f"{folder / 'comparison.csv'} cannot be read: {error}") from error


def _side_by_side(
    folder: Path, readings: Sequence[Reading], titles: Mapping[str, str]
) -> list[Section]:
    """Return the sections on the runs of one alpha."""
    methods: dict[str, list[Reading]] = {}
    for reading in readings:
        title = titles.get(reading.cell.strategy, reading.cell.strategy)
        methods.setdefault(title, []).append(reading)
    suffix = f", alpha = {readings[0].cell.alpha:g}"
    failures = sum(r.failures for r in readings)
    return [
        Section(
            f"Accuracy over rounds{suffix}",
            lead=(
                "Each method's mean over seeds, thin; smoothed as in the paper (factor 0.2), bold, "
                "before the others in grey. The band is the range over seeds."
            ),
            pictures=_curves(methods),
        ),
        *_first_runs(folder, methods, suffix),
        Section(
            f"Failures, time and bytes{suffix}",
            lead=f"{failures} failures of clients in {len(readings)} runs.",
            pictures=_mean_costs(methods),
        ),
    ]


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
    folder: Path, methods: Mapping[str, Sequence[Reading]], suffix: str
) -> list[Section]:
    """Return the sections on each method's first run, which need not have the same seed."""
    seeds = {title: f"seed {rs[0].cell.seed}" for title, rs in methods.items()}
    runs = {title: read_files(folder / "runs" / rs[0].cell.name) for title, rs in methods.items()}
    strips = [
        _heat_map(run.class_accuracy, f"{title}, {seeds[title]}", wide=False)
        for title, run in runs.items()
        if run.class_accuracy is not None
    ]
    first, *_ = methods
    holdings = _holdings(runs[first])
    classes = Section(
        f"Accuracy per class{suffix}",
        lead="Dark is 0 %, bright is 100 %. A row that goes dark is a class being forgotten.",
        pictures=strips,
    )
    return [
        classes,
        replace(holdings, title=f"{holdings.title}{suffix}, {seeds[first]}"),
        *(
            replace(
                section,
                title=f"{section.title} of {title}{suffix}, {seeds[title]}",
                notes=run.damaged,
            )
            for title, run in runs.items()
            for section in _anchors(run)
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


# --- configuration --------------------------------------------------------------------------


def _grouped(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the values outside of tables, then each table's."""
    top = {key: value for key, value in config.items() if not isinstance(value, Mapping)}
    tables = {key: value for key, value in config.items() if isinstance(value, Mapping)}
    return {name: _shown(values) for name, values in {"": top, **tables}.items() if values}


def _shown(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as TOML and JSON write them, texts without quotes."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value) or "–"
        for key, value in values.items()
    }
