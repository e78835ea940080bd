"""Which sections the page of a run has, and what is not there."""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from fedadb_app.data.registry import preparation_of
from fedadb_app.report import charts
from fedadb_app.report.charts import Line
from fedadb_app.report.evaluation_sections import evaluation_section, sites_section
from fedadb_app.report.page_parts import Page, Section, ShownImage, shown
from fedadb_app.report.site_sections import personalised_section
from fedadb_app.report.svg import Picture
from fedadb_app.runs.reader import RunFiles, read_files
from fedadb_app.runs.sections import MethodSection
from fedadb_app.runs.tables import Table
from strategies.registry import STRATEGIES, method_title

_SHOWN_ROUNDS = 6  # whose anchors are shown
_PARTS = ("anchors", "train", "aggregate", "evaluate")


def run_page(folder: Path) -> Page:
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
    own = of_method(run)
    tested, not_tested = evaluation_section(run)
    sites, damaged_sites = sites_section(run)
    personal, not_read = personalised_section(run)
    sections = [
        _learning(run),
        *tested,
        *sites,
        *personal,
        _classes(run),
        holdings(run),
        *method_sections(run, own),
        _costs(run),
        Section("Configuration", values=_grouped(run.config)),
    ]
    missing = [*_missing(run), *not_tested, *damaged_sites, *not_read]
    missing += [*own.faults, *own.notes] if own else []
    if missing:
        sections.append(Section("What is not here", notes=missing))
    strategy = str(summary.get("strategy", "run"))
    return Page(
        folder=folder,
        title=f"{method_title(strategy)} on {Path(str(summary.get('dataset', '?'))).stem}",
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
            *_chosen(run),
            ("rounds", f"{summary['rounds']} of {run.num_rounds}"),
            ("seconds", str(summary["seconds"])),
            ("failures of clients", str(run.rounds.total("failures"))),
        ],
        sections=sections,
    )


def _chosen(run: RunFiles) -> list[tuple[str, str]]:
    """Return the tile of the round that validation chose, if it chose one."""
    if not run.chosen_round:
        return []
    test = run.summary["selection"]["chosen"].get("test", {})
    return [(f"round {run.chosen_round}, chosen by validation", f"{test.get('accuracy', '–')} %")]


def _learning(run: RunFiles) -> Section:
    rounds, accuracies = run.rounds.known("accuracy")
    pictures = [charts.accuracy_curve(rounds, accuracies)] if len(rounds) else []
    losses = [Line("test", *run.rounds.known("loss"))]
    losses.append(Line("clients' training, mean", *run.diagnostic("train_loss")))
    losses = [line for line in losses if len(line.rounds)]
    if losses:
        pictures.append(charts.lines("Loss", "cross-entropy", losses))
    names = [] if run.diagnostics is None else [row[1] for row in run.diagnostics.rows]
    strategy = str(run.summary.get("strategy"))
    captions = STRATEGIES[strategy].captions if strategy in STRATEGIES else {}
    for name in dict.fromkeys(names):
        if name != "train_loss":
            caption = captions.get(name, name.replace("_", " "))
            pictures.append(charts.lines(caption, "", [Line(name, *run.diagnostic(name))]))
    epsilon = Line("epsilon", *run.rounds.known("epsilon"))
    if len(epsilon.rounds):
        pictures.append(charts.lines("Privacy spent", "epsilon", [epsilon]))
    tables = {"Every round (rounds.csv)": run.rounds}
    if run.diagnostics is not None:
        tables["Diagnostics (diagnostics.csv)"] = run.diagnostics
    return Section("Learning", pictures=pictures, tables=tables)


def _classes(run: RunFiles) -> Section:
    table = run.class_accuracy
    if table is None or not table.rows:
        return Section("Accuracy per class", lead="There is no accuracy per class.")
    return Section(
        "Accuracy per class",
        pictures=[heat_map(table, "Accuracy per class", wide=True)],
        tables={"Every evaluated round (class_accuracy.csv)": table},
    )


def heat_map(table: Table, caption: str, wide: bool) -> Picture:
    """Draw ``class_accuracy.csv``."""
    names = table.header[1:]
    return charts.class_heat_map(caption, table.numbers("round"), table.per_class(), names, wide)


def holdings(run: RunFiles) -> Section:
    """Return the section on who holds what."""
    title = "Who holds what"
    if run.partition is None:
        return Section(title, lead="There is no partition.json that can be read.")
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


def of_method(run: RunFiles) -> MethodSection | None:
    """Ask a run's method what it has to show of it."""
    strategy = str(run.summary.get("strategy"))
    return STRATEGIES[strategy].report(run) if strategy in STRATEGIES else None


def method_sections(run: RunFiles, found: MethodSection | None) -> list[Section]:
    """Return the page's section for what a method has to show, if it has anything."""
    if found is None or not (found.images or found.curves):
        return []
    pictures = [
        charts.lines(
            c.title, c.unit, [Line(label, *line) for label, line in c.lines.items()], from_zero=True
        )
        for c in found.curves
    ]
    names, preparation = run.class_names, preparation_of(str(run.config.get("dataset", "")))
    images = {
        f"Round {t}": [
            ShownImage(
                _png(preparation.to_pixels(image.image)),
                found.kind,
                names[image.label] if image.label < len(names) else f"class {image.label}",
                image.confidence,
            )
            for image in found.images[t]
        ]
        for t in spread(list(found.images))
    }
    return [Section(found.title, lead=found.lead, images=images, pictures=pictures)]


def spread(rounds: Sequence[int]) -> Sequence[int]:
    """Choose some rounds, evenly, the first and the last among them."""
    chosen = np.linspace(0, len(rounds) - 1, min(_SHOWN_ROUNDS, len(rounds))).round().astype(int)
    return [rounds[i] for i in chosen]


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
    yield from run.faults.values()
    if not run.config and "config.toml" not in run.faults:
        yield "config.toml is not there: no configuration, and T is taken to be the rounds so far."
    if not run.rounds.rows:
        yield "No round has ended: there is nothing to draw over rounds."
    elif not len(run.rounds.known("accuracy")[0]):
        yield "No round was evaluated: no accuracy and no test loss."
    if run.class_accuracy is None and "class_accuracy.csv" not in run.faults:
        yield "class_accuracy.csv is not there: only a server that evaluates writes it."


def _grouped(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the values outside of tables, then each table's."""
    top = {key: value for key, value in config.items() if not isinstance(value, Mapping)}
    tables = {key: value for key, value in config.items() if isinstance(value, Mapping)}
    return {name: shown(values) for name, values in {"": top, **tables}.items() if values}
