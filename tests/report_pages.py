"""Pages of runs and comparisons that tests write, and what such a page says."""

import json
from contextlib import nullcontext
from html.parser import HTMLParser
from unittest.mock import patch

import torch
from helpers import read_csv, read_json
from markupsafe import Markup

from fedadb_app.comparison.differences import write_significance
from fedadb_app.comparison.grid import Cell
from fedadb_app.comparison.readings import read_run
from fedadb_app.comparison.tables import write_csv, write_markdown
from fedadb_app.local_training import Attachment
from fedadb_app.report.svg import Picture
from fedadb_app.report.write_report import write_report
from fedadb_app.runs.record import RoundRecord
from fedadb_app.runs.writer import RunFolder
from strategies.registry import read_run_config

METHODS = ("fedavg", "fedadb")
CLASSES = ("cat", "dog & <wet>", 'a "very" long name of a class, in words')
COUNTS = ((5, 0, 0), (3, 4, 0), (0, 0, 9), (2, 0, 0))
ACCURACIES = (10.5, 33.33, 21.07, 48.9)
QUALITIES = (0.2, 0.5, 0.75, 1.0)


class Parsed(HTMLParser):
    """A page's elements, its text, and the cells of its tables."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.words, self.tables, self.values = [], [], [], {}
        self._open, self._key = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:  # elements that have no end
            pass

    def handle_data(self, data):
        if "style" in self._open:
            return
        self.words.append(data)
        if {"td", "th"} & set(self._open):
            self.tables[-1][-1][-1] += data
        elif self._open and self._open[-1] == "dt":
            self._key = data
        elif self._open and self._open[-1] == "dd":
            self.values[self._key] = data

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def alternatives(self):
        return [a.get("aria-label", "") for a in self.all("svg")] + [
            a.get("alt", "") for a in self.all("img")
        ]


def undrawn(picture):
    """Stand for a picture: its alternative text alone, a hundred times faster."""
    return Markup('<svg role="img" aria-label="{}"></svg>').format(picture.alternative)


def html_of(folder, tmp_path, drawn=False):
    """Return a folder's page; its pictures are drawn only where a test looks at them."""
    path = tmp_path / "page.html"
    with nullcontext() if drawn else patch.object(Picture, "svg", property(undrawn)):
        write_report(folder, path)
    return path.read_text()


def page_of(folder, tmp_path, drawn=False):
    return Parsed(html_of(folder, tmp_path, drawn))


def record(number, accuracy, quality):
    found = RoundRecord(number, accuracy=accuracy, loss=2 / number, learning_rate=0.01)
    found.anchor_quality = quality
    found.clients, found.failures = 3, int(number == 2)
    found.bytes_down, found.bytes_up = 1_000_003, 500_001
    found.seconds_train, found.seconds_evaluate = 1.2345, 0.1
    found.class_accuracy = (accuracy, 100 - accuracy, float("nan"))
    found.diagnostics = {"train_loss": 1.5 / number, "extra_number": float(number)}
    return found


def write_run(base, name="run", strategy="fedadb", accuracies=ACCURACIES, anchors=True, **values):
    """Write what a run leaves, with the app's own writer; return its folder."""
    given = {"output-dir": str(base), "run-name": name, "strategy": strategy, **values}
    config, _, own = read_run_config({"num-server-rounds": len(accuracies), **given})
    with RunFolder.create(config, run_id=1) as folder:
        folder.write_config(config, own.model_dump(by_alias=True))
        clients = [{"size": sum(c), "class_counts": c} for c in COUNTS]
        manifest = {"rule": "dirichlet", "alpha": 0.1, "classes": CLASSES, "clients": clients}
        (folder.path / "partition.json").write_text(json.dumps(manifest))
        for number, accuracy in enumerate(accuracies, start=1):
            quality = QUALITIES[number - 1] if anchors else float("nan")
            folder.add_round(record(number, accuracy, quality), CLASSES)
        if anchors:
            images = torch.linspace(-1, 1, 3 * 3 * 4 * 4).reshape(3, 3, 4, 4)
            tensors = {"images": images, "labels": torch.arange(3)}
            tensors["confidences"] = torch.tensor([0.9993531, 1.0, 0.5])
            folder.write_tensors("anchors", Attachment(tensors))
    return folder.path


def write_comparison(base):
    """Write what `fedadb compare` leaves: two methods, two seeds, and a run that failed."""
    readings = []
    for strategy in METHODS:
        for seed in (0, 1):
            cell = Cell(strategy, 0.1, seed)
            values = [a + 3 * seed + 7 * (strategy == "fedadb") for a in ACCURACIES]
            folder = write_run(
                base / "runs", cell.name, strategy, values, strategy == "fedadb", seed=seed
            )
            readings.append(read_run(cell, folder))
    write_csv(readings, base / "comparison.csv")
    write_markdown(readings, "fedavg", base / "comparison.md", {})
    write_significance(readings, "fedavg", base)
    shared = {
        "run-config": {"dataset": "digits", "num-server-rounds": 4, "weight-decay": 1e-05},
        "federation": {"num_supernodes": 4, "client_cpus": 1, "client_gpus": 0.0},
    }
    (base / "comparison.json").write_text(json.dumps(shared))
    lost = write_run(base / "runs", "fedadb-alpha0.1-seed2.incomplete1")
    summary = read_json(lost / "summary.json") | {"status": "failed"}
    (lost / "summary.json").write_text(json.dumps(summary))
    return base


def cells(path):
    """A CSV file's cells, header first."""
    rows = read_csv(path)
    return [list(rows[0]), *(list(row.values()) for row in rows)]


def keep_snapshot(run, number):
    kept = run / "snapshots" / f"round{number:04}"
    kept.mkdir(parents=True)
    (kept / "model.safetensors").write_bytes(b"is not looked at")
    (kept / "anchors.safetensors").write_bytes((run / "anchors.safetensors").read_bytes())


def set_status(folder, status, **more):
    path = folder / "summary.json"
    path.write_text(json.dumps(read_json(path) | {"status": status, **more}))
