"""The page of a run and of a comparison: its numbers are the files', and it needs nothing else."""

import base64
import io
import json
import os
import re
import select
import shutil
import subprocess
import warnings
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from helpers import read_csv, read_json
from PIL import Image
from safetensors.torch import save
from typer.testing import CliRunner

from fedadb_app.cli.main import main
from fedadb_app.comparison.grid import Cell
from fedadb_app.comparison.readings import read_run
from fedadb_app.comparison.tables import write_csv, write_markdown
from fedadb_app.errors import DataError
from fedadb_app.local_training import Attachment
from fedadb_app.report.pages import write_report
from fedadb_app.report.run_page import spread
from fedadb_app.runs.reader import read_files
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


def html_of(folder, tmp_path):
    path = tmp_path / "page.html"
    write_report(folder, path)
    return path.read_text()


def page_of(folder, tmp_path):
    return Parsed(html_of(folder, tmp_path))


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
    write_markdown(readings, "fedavg", base / "comparison.md")
    shared = {
        "run-config": {"dataset": "digits", "num-server-rounds": 4, "weight-decay": 1e-05},
        "federation": {"num_supernodes": 4, "client_cpus": 1, "client_gpus": 0.0},
    }
    (base / "comparison.json").write_text(json.dumps(shared))
    lost = write_run(base / "runs", "fedadb-alpha0.1-seed2.incomplete1")
    summary = read_json(lost / "summary.json") | {"status": "failed"}
    (lost / "summary.json").write_text(json.dumps(summary))
    return base


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path)


@pytest.fixture
def comparison(tmp_path):
    return write_comparison(tmp_path / "comparison")


# --- numbers --------------------------------------------------------------------------------


def cells(path):
    """A CSV file's cells, header first."""
    rows = read_csv(path)
    return [list(rows[0]), *(list(row.values()) for row in rows)]


@pytest.mark.parametrize("name", ["rounds.csv", "class_accuracy.csv", "diagnostics.csv"])
def test_every_table_of_a_run_is_there_as_it_stands(run, tmp_path, name):
    assert cells(run / name) in page_of(run, tmp_path).tables


def test_the_summary_is_shown_as_it_stands(run, tmp_path):
    shown = page_of(run, tmp_path).values
    summary = json.loads((run / "summary.json").read_text(), parse_float=str)
    assert shown["final accuracy"] == "48.9 %"
    assert shown["mean of the five best rounds"] == f"{summary['best5_accuracy']} %" == "28.45 %"
    assert shown["seconds"] == summary["seconds"]
    assert shown["rounds"] == "4 of 4"
    assert shown["failures of clients"] == "1"


def test_totals_are_the_columns_sums(run, tmp_path):
    text = page_of(run, tmp_path).text
    assert "12 usable answers of clients over 4 rounds, 1 failures" in text
    assert "4000012 bytes to the clients, 2000004 bytes back" in text


def test_every_value_of_the_configuration_is_there(run, tmp_path):
    shown = page_of(run, tmp_path).values
    assert shown["weight-decay"] == "1e-05"
    assert shown["anchor-l2"] == "0.0001"
    assert shown["augment"] == "false"
    assert shown["data-dir"] == "–"
    assert "torch" in shown


def test_curves_are_put_into_words(run, tmp_path):
    alternatives = page_of(run, tmp_path).alternatives()
    accuracy = next(a for a in alternatives if "Test accuracy" in a)
    assert "10.5 in round 1, 48.9 in round 4, lowest 10.5 in round 1, highest 48.9" in accuracy
    holdings = next(a for a in alternatives if "Training samples" in a)
    assert "4 clients: between 2 and 9, 23 in all" in holdings
    assert "between 1 and 2 of 3 classes" in holdings


def test_beta_is_equation_8s(run, tmp_path):
    """Clients lack 1, 2, 2 and 2 of 3 classes; in round 2 of 4, tau = 0.5."""
    words = next(a for a in page_of(run, tmp_path).alternatives() if "lacks" in a)
    assert f"lacks 1 of 3 classes: {0.25 ** (1 / 3 * 0.2):g} in round 1" in words
    assert f"lowest {0.5 ** (2 / 3 * 0.5):g} in round 2" in words
    assert "1 in round 4" in words


def test_anchors_are_shown_pixel_by_pixel(run, tmp_path):
    images = page_of(run, tmp_path).all("img")
    assert [i["alt"] for i in images] == [
        f"Class anchor of {name}, round 4, confidence {confidence}"
        for name, confidence in zip(CLASSES, ("0.9993531", "1.0", "0.5"), strict=True)
    ]
    content = base64.b64decode(images[0]["src"].removeprefix("data:image/png;base64,"))
    pixels = np.asarray(Image.open(io.BytesIO(content)))
    inputs = np.linspace(-1, 1, 144)[:48].reshape(3, 4, 4)  # float32 cannot move a rounding here
    expected = np.round((inputs + 1) / 2 * 255).transpose(1, 2, 0)
    assert pixels.shape == (4, 4, 3)
    assert np.abs(pixels - expected).max() <= 1
    assert pixels[0, 0].tolist() == [0, 29, 57]


def keep_snapshot(run, number):
    kept = run / "snapshots" / f"round{number:04}"
    kept.mkdir(parents=True)
    (kept / "model.safetensors").write_bytes(b"is not looked at")
    (kept / "anchors.safetensors").write_bytes((run / "anchors.safetensors").read_bytes())


def test_anchors_are_shown_over_the_rounds_that_a_run_has_kept(run, tmp_path):
    for number in (1, 2, 3):
        keep_snapshot(run, number)
    page = page_of(run, tmp_path)
    rounds = [re.search(r"round (\d)", image["alt"])[1] for image in page.all("img")]
    assert rounds == [t for t in "1234" for _ in CLASSES]
    assert "anchors of earlier rounds" not in page.text


def test_the_newest_anchors_that_a_run_going_on_has_kept_are_shown(run, tmp_path):
    for number in (2, 4):
        keep_snapshot(run, number)
    (run / "anchors.safetensors").unlink()
    headings = re.findall(r"<h3>(Round .*?)</h3>", html_of(run, tmp_path))
    assert headings == ["Round 2", "Round 4"]


def test_a_damaged_snapshot_is_listed_and_the_rest_is_shown(run, tmp_path):
    keep_snapshot(run, 2)
    keep_snapshot(run, 3)
    damaged = run / "snapshots" / "round0003" / "anchors.safetensors"
    damaged.write_text("not tensors")
    text = html_of(run, tmp_path)
    assert re.findall(r"<h3>(Round .*?)</h3>", text) == ["Round 2", "Round 4"]
    assert f"{damaged} cannot be read" in text.partition("What is not here")[2]


@pytest.mark.parametrize("kept", [1, 5, 6, 7, 100])
def test_of_many_rounds_some_are_shown_the_first_and_the_last_among_them(kept):
    shown = spread(range(1, kept + 1))
    assert len(shown) == min(kept, 6)
    assert (shown[0], shown[-1]) == (1, kept)
    assert sorted(set(shown)) == list(shown)


def test_a_comparison_shows_its_tables_as_they_stand(comparison, tmp_path):
    page = page_of(comparison, tmp_path)
    assert cells(comparison / "comparison.csv") in page.tables
    lines = (comparison / "comparison.md").read_text().splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("| ")]
    expected = [[cell.strip(" *") for cell in row] for row in rows]
    shown = [row for table in page.tables[:3] for row in table]
    assert shown == expected
    assert page.values["complete runs"] == "4"
    assert page.values["weight-decay"] == "1e-05"


def test_where_seeds_differ_each_picture_says_whose_it_is(comparison, tmp_path):
    """Of fedadb only seed 1 is complete, of fedavg both."""
    shutil.rmtree(comparison / "runs" / "fedadb-alpha0.1-seed0")
    text = html_of(comparison, tmp_path)
    strips = text.partition("Accuracy per class, alpha = 0.1")[2].partition("</section>")[0]
    captions = re.findall("<figcaption>(.*?)</figcaption>", strips)
    assert captions == ["FedAvg, seed 0", "FedADB, seed 1"]
    assert not re.search("seed", strips.partition("<figure")[0], re.I)
    assert "<h2>Who holds what, alpha = 0.1, seed 0</h2>" in text
    assert "<h2>Class anchors of FedADB, alpha = 0.1, seed 1</h2>" in text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rule": "dirichlet", "alpha": 0.1}, "Rule dirichlet, alpha 0.1."),
        ({"rule": "iid"}, "Rule iid."),
        ({"rule": "domain", "classes_per_client": 2}, "Rule domain, classes per client 2."),
    ],
)
def test_of_a_rule_its_own_settings_are_told(run, tmp_path, settings, said):
    manifest = read_json(run / "partition.json")
    kept = {key: manifest[key] for key in ("classes", "clients")}
    (run / "partition.json").write_text(json.dumps(kept | settings))
    text = page_of(run, tmp_path).text.partition(" Configuration ")[0]  # shows what was set
    assert said in text
    assert ("alpha 0.1 · seed 0" in text) == ("alpha" in settings)


# --- one file, for everybody ----------------------------------------------------------------


@pytest.fixture(params=["run", "comparison"])
def either(request):
    return request.getfixturevalue(request.param)


def test_every_picture_has_alternative_text_of_its_own(either, tmp_path):
    page = page_of(either, tmp_path)
    alternatives = page.alternatives()
    assert len(page.all("svg")) >= 8
    assert all(len(text) > 20 for text in alternatives)
    assert all(a["role"] == "img" for a in page.all("svg"))
    assert len(set(alternatives)) == len(alternatives)


def test_nothing_is_fetched_and_nothing_is_executed(either, tmp_path):
    page = page_of(either, tmp_path)
    text = (tmp_path / "page.html").read_text()
    assert not re.search("https?:|//[a-z]|@import", re.sub('base64,[^"]*', "", text))
    assert not page.all("script")
    assert not page.all("link")
    sources = [v for _, a in page.elements for k, v in a.items() if k in ("src", "href")]
    assert all(source.startswith(("data:", "#")) for source in sources)
    assert set(re.findall(r"url\((.)", text)) <= {"#"}


def test_identifiers_are_unique_and_every_reference_is_met(either, tmp_path):
    page = page_of(either, tmp_path)
    ids = [a["id"] for _, a in page.elements if "id" in a]
    text = (tmp_path / "page.html").read_text()
    assert len(set(ids)) == len(ids)
    assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', text)) <= set(ids)


def test_colours_are_the_pages_own(run, tmp_path):
    page_of(run, tmp_path)
    drawn = re.findall("<svg.*?</svg>", (tmp_path / "page.html").read_text(), re.S)
    for svg in drawn:
        assert "var(--s" in svg or "<image" in svg
        assert not re.search("(fill|stroke): #", svg)


def test_names_are_escaped(run, tmp_path):
    page = page_of(run, tmp_path)
    assert "wet" not in [tag for tag, _ in page.elements]
    assert "dog & <wet>" in page.text


def test_names_are_drawn_as_they_are(run, tmp_path):
    r"""`5$ \foo 6$` is no mathematics, and a control character no part of an SVG."""
    names = [r"5$ \foo 6$", "costs $5 or $6", "bell\x07 rings"]
    manifest = read_json(run / "partition.json") | {"classes": names}
    (run / "partition.json").write_text(json.dumps(manifest))
    text = (run / "class_accuracy.csv").read_text().partition("\n")[2]
    (run / "class_accuracy.csv").write_text(",".join(["round", *names]) + "\n" + text)
    drawn = re.findall("<text[^>]*>(.*?)</text>", html_of(run, tmp_path), re.S)
    for name in (r"5$ \foo 6$"[:12], "bell rings"):
        assert drawn.count(name) == 2, name
    assert "costs $5 or $6" in drawn


def test_the_same_files_give_the_same_page(run, tmp_path):
    write_report(run, tmp_path / "one.html")
    write_report(run, tmp_path / "two.html")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


# --- what is not there ----------------------------------------------------------------------


def set_status(folder, status, **more):
    path = folder / "summary.json"
    path.write_text(json.dumps(read_json(path) | {"status": status, **more}))


def test_a_run_that_has_just_begun(tmp_path):
    folder = write_run(tmp_path, accuracies=(), anchors=False, **{"num-server-rounds": 9})
    set_status(folder, "running")
    page = page_of(folder, tmp_path)
    assert page.values["rounds"] == "0 of 9"
    assert "The run has not ended" in page.text
    assert "No round has ended" in page.text


def test_a_failed_run_says_why(run, tmp_path):
    set_status(run, "failed", reason="round 5: 1 of 5 clients gave a usable update, 3 needed")
    assert "The run failed: round 5: 1 of 5 clients" in page_of(run, tmp_path).text


def test_a_run_without_evaluation(tmp_path):
    folder = write_run(tmp_path, accuracies=[float("nan")] * 3)
    (folder / "class_accuracy.csv").unlink()
    page = page_of(folder, tmp_path)
    assert "No round was evaluated" in page.text
    assert "There is no accuracy per class" in page.text
    assert "final accuracy" not in page.values
    assert not any("Test accuracy" in a for a in page.alternatives())


def test_a_method_without_anchors(tmp_path):
    page = page_of(write_run(tmp_path, strategy="fedavg", anchors=False), tmp_path)
    assert not page.all("img")
    assert "anchors.safetensors is not there" in page.text
    assert "Class anchors" not in page.text


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"fedadb.beta": "0.5"}, "fixed at 0.5"),
        ({"fedadb.use-lcb": False}, "leaves the local branch out"),
        ({"fedadb.use-anchors": False}, "it is 1 for every client"),
    ],
)
def test_where_there_is_no_curve_of_beta_the_page_says_why(tmp_path, values, said):
    anchors = values.get("fedadb.use-anchors", True)
    page = page_of(write_run(tmp_path, anchors=anchors, **values), tmp_path)
    assert said in page.text
    assert not any("lacks" in a for a in page.alternatives())


def test_of_nodes_with_their_own_data_nothing_is_made_up(run, tmp_path):
    clients = [{"client": 7 + i, "size": 10 + i} for i in range(3)]
    manifest = {"rule": "nodes", "classes": list(CLASSES), "clients": clients}
    (run / "partition.json").write_text(json.dumps(manifest))
    page = page_of(run, tmp_path)
    assert "which classes, only they know" in page.text
    assert not any("Heat map of samples" in a for a in page.alternatives())
    assert any("lacks 0 of 3 classes" in a for a in page.alternatives())


@pytest.mark.parametrize("name", ["config.toml", "partition.json", "diagnostics.csv"])
def test_a_file_less_is_a_picture_less(run, tmp_path, name):
    (run / name).unlink()
    assert cells(run / "rounds.csv") in page_of(run, tmp_path).tables


def test_a_line_that_is_being_written_is_left_out(run, tmp_path):
    before = cells(run / "rounds.csv")
    with (run / "rounds.csv").open("a") as file:
        file.write("5,48.")
    assert before in page_of(run, tmp_path).tables


def test_a_comparison_says_which_runs_do_not_count(comparison, tmp_path):
    shutil.rmtree(comparison / "runs" / "fedavg-alpha0.1-seed1")
    page = page_of(comparison, tmp_path)
    assert "fedavg-alpha0.1-seed1 is named in comparison.csv, but does not count" in page.text
    assert "fedadb-alpha0.1-seed2.incomplete1 did not complete" in page.text
    assert page.values["complete runs"] == "3"


def test_a_comparison_names_a_damaged_snapshot(comparison, tmp_path):
    kept = comparison / "runs" / "fedadb-alpha0.1-seed0"
    keep_snapshot(kept, 2)
    damaged = kept / "snapshots" / "round0002" / "anchors.safetensors"
    damaged.write_text("not tensors")
    assert f"{damaged} cannot be read" in page_of(comparison, tmp_path).text


def test_a_comparison_of_which_nothing_has_run(comparison, tmp_path):
    (comparison / "comparison.csv").unlink()
    (comparison / "comparison.md").unlink()
    shutil.rmtree(comparison / "runs")
    assert "No run has completed yet" in page_of(comparison, tmp_path).text


def test_many_classes_one_round(run, tmp_path):
    many = [f"class {c}" for c in range(200)]
    counts = np.ones((2, 200), int).tolist()
    clients = [{"size": 200, "class_counts": row} for row in counts]
    manifest = {"rule": "iid", "classes": many, "clients": clients}
    (run / "partition.json").write_text(json.dumps(manifest))
    lines = [",".join(["round", *many]), ",".join(["1", *["50.00"] * 200])]
    (run / "class_accuracy.csv").write_text("\n".join(lines) + "\n")
    assert len(page_of(run, tmp_path).all("svg")) >= 8


# --- what cannot be shown -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", "{"),
        ("summary.json", "{}"),
        ("summary.json", "[]"),
        ("rounds.csv", "round,accuracy\n1,high\n"),
        ("rounds.csv", "round,clients,bytes_down,bytes_up\n1,1,1,1\n"),
        ("rounds.csv", ""),
        ("rounds.csv", f"round\n{'1' * 200_000}\n"),
    ],
)
def test_without_summary_and_rounds_there_is_no_page(run, tmp_path, name, content):
    (run / name).write_text(content)
    with pytest.raises(DataError, match=f"{name} cannot be read"):
        page_of(run, tmp_path)


def tensors(**changed):
    kept = {"images": torch.zeros(3, 3, 4, 4), "labels": torch.arange(3)}
    return save(kept | {"confidences": torch.ones(3)} | changed)


def partition(**changed):
    clients = [{"size": 5, "class_counts": [1, 2, 2]}, {"size": 1, "class_counts": [1, 0, 0]}]
    return json.dumps({"rule": "iid", "classes": CLASSES, "clients": clients} | changed)


DAMAGES = [
    ("config.toml", "a ="),
    ("config.toml", "fedadb = 3"),
    ("config.toml", "[fedadb]"),
    ("config.toml", 'num-server-rounds = "many"'),
    ("config.toml", "num-server-rounds = 0"),
    ("partition.json", "[]"),
    ("partition.json", partition(clients=[])),
    ("partition.json", '{"classes": ["cat"], "clients": [{"size": 1, "class_counts": [1]}]}'),
    ("partition.json", partition(clients=[{"size": 3, "class_counts": [1, 2]}])),
    ("partition.json", partition(clients=[{"size": 3, "class_counts": [1, 1, 1]}, {"size": 3}])),
    ("partition.json", partition(clients=[{"size": 3}, {"size": 3, "class_counts": [1, 1, 1]}])),
    ("partition.json", partition(clients=[{"size": 3, "class_counts": ["1", "1", "1"]}])),
    ("class_accuracy.csv", "a,b\n1,2\n"),
    ("class_accuracy.csv", "round,cat\n1,2\n3,2\n2,2\n4,2\n"),
    ("class_accuracy.csv", "round,cat\n1,high\n"),
    ("diagnostics.csv", "round,name,value\n1,loss,low\n"),
    ("diagnostics.csv", "round,name,value\n1,loss,\n"),
    ("diagnostics.csv", "round,name,value,more\n1,loss,1,1\n"),
    ("anchors.safetensors", "not tensors"),
    ("anchors.safetensors", tensors(images=torch.zeros(3, 4, 4))),
    ("anchors.safetensors", tensors(images=torch.zeros(3, 2, 4, 4))),
    ("anchors.safetensors", tensors(images=torch.zeros(3, 3, 0, 4))),
    ("anchors.safetensors", tensors(labels=torch.arange(2))),
    ("anchors.safetensors", tensors(labels=torch.zeros(3))),
    ("anchors.safetensors", tensors(confidences=torch.ones(3, 1))),
]


def damage(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize(("name", "content"), DAMAGES)
def test_a_damaged_file_is_named_and_the_rest_is_shown(run, tmp_path, name, content):
    damage(run / name, content)
    text = html_of(run, tmp_path)
    missing = Parsed(text.partition("What is not here")[2]).text
    assert f"{run / name} cannot be read: " in missing
    assert f"{name} is not there" not in missing
    assert cells(run / "rounds.csv") in Parsed(text).tables
    assert any("Test accuracy" in words for words in Parsed(text).alternatives())


@pytest.mark.parametrize(("name", "content"), dict(DAMAGES).items())  # one a file
def test_a_damaged_file_of_one_run_costs_a_comparison_no_more(comparison, tmp_path, name, content):
    before = page_of(comparison, tmp_path)
    damaged = comparison / "runs" / "fedadb-alpha0.1-seed0" / name
    damage(damaged, content)
    page = page_of(comparison, tmp_path)
    assert f"{damaged} cannot be read: " in page.text
    assert page.values == before.values
    assert page.values["complete runs"] == "4"
    lost = set(before.alternatives()) - set(page.alternatives())
    affected = "Heat map|Class anchor|Weight|lacks|Bar chart. Training"  # of this method
    assert all(re.search(affected, words) for words in lost)
    assert sum("Test accuracy" in words for words in page.alternatives()) == 2


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("class_accuracy.csv", "round,cat\n", "0 rows for 4 evaluated rounds"),
        ("class_accuracy.csv", "round,cat\n1,50.00\n2,50", "1 rows for 4 evaluated rounds"),
        ("diagnostics.csv", "round,name,value\n1,loss,1\n", "it ends with round 1"),
        ("diagnostics.csv", "round,name,value\n", "it ends with round 0"),
    ],
)
def test_what_a_completed_run_lacks_is_named(either, tmp_path, name, content, said):
    folder = either if (either / name).exists() else either / "runs" / "fedadb-alpha0.1-seed0"
    (folder / name).write_text(content)
    text = page_of(either, tmp_path).text
    assert f"{folder / name} does not hold the whole run: {said}" in text


@pytest.mark.parametrize("cut", [1, 3, 50])
def test_a_completed_run_that_lacks_a_round_is_shown_but_does_not_count(
    run, comparison, tmp_path, cut
):
    one = comparison / "runs" / "fedavg-alpha0.1-seed0" / "rounds.csv"
    for path in (run / "rounds.csv", one):
        path.write_text(path.read_text()[:-cut])
    page = page_of(run, tmp_path)
    said = "does not hold the whole run: it says rounds = 3, summary.json 4"
    assert f"{run / 'rounds.csv'} {said}" in page.text
    assert cells(run / "rounds.csv")[:4] in page.tables
    page = page_of(comparison, tmp_path)
    assert f"runs/fedavg-alpha0.1-seed0 does not count: {one} {said}" in page.text
    assert page.values["complete runs"] == "3"


def test_a_run_of_a_comparison_with_other_rounds_does_not_count(comparison, tmp_path):
    name = "fedavg-alpha0.1-seed1"
    shutil.rmtree(comparison / "runs" / name)
    write_run(comparison / "runs", name, "fedavg", [10.0, 20.0], anchors=False, seed=1)
    page = page_of(comparison, tmp_path)
    assert f"runs/{name} does not count: it has other rounds than most" in page.text
    assert page.values["complete runs"] == "3"


def test_a_run_in_anothers_folder_does_not_count(comparison, tmp_path):
    runs = comparison / "runs"
    shutil.copytree(runs / "fedavg-alpha0.1-seed1", runs / "fedavg-alpha0.1-seed2")
    page = page_of(comparison, tmp_path)
    said = "its summary.json is that of fedavg-alpha0.1-seed1"
    assert f"runs/fedavg-alpha0.1-seed2 does not count: {said}" in page.text
    assert page.values["complete runs"] == "4"


@pytest.mark.parametrize("content", ["{", "{}"])
def test_without_what_all_runs_share_there_is_no_page(comparison, tmp_path, content):
    (comparison / "comparison.json").write_text(content)
    with pytest.raises(DataError, match=r"comparison\.json cannot be read"):
        page_of(comparison, tmp_path)


@pytest.mark.parametrize("content", [None, "strategy\nfedavg\n", "strategy,alpha,seed\nfedavg,0."])
def test_without_its_table_a_comparison_shows_its_runs(comparison, tmp_path, content):
    before = page_of(comparison, tmp_path)
    (comparison / "comparison.csv").unlink()
    if content:
        (comparison / "comparison.csv").write_text(content)
    page = page_of(comparison, tmp_path)
    assert page.values == before.values
    assert page.alternatives() == before.alternatives()
    names = ", ".join(f"{m}-alpha0.1-seed{seed}" for m in ("fedadb", "fedavg") for seed in (0, 1))
    assert f"The tables lack {names}: the `fedadb compare` that made" in page.text
    assert ("comparison.csv cannot be read" in page.text) == (content == "strategy\nfedavg\n")


def test_a_half_written_table_of_a_comparison_hides_no_method(comparison, tmp_path):
    path = comparison / "comparison.csv"
    path.write_text(path.read_text()[:-5])
    page = page_of(comparison, tmp_path)
    assert page.values["complete runs"] == "4"
    assert "The tables lack fedadb-alpha0.1-seed1: " in page.text


def test_a_round_whose_diagnostics_are_being_written_is_left_out(run, tmp_path):
    """Each name is written by itself, so that the last round may have some of them."""
    whole = (run / "diagnostics.csv").read_text()
    lines = whole.splitlines(keepends=True)
    assert [line.split(",")[0] for line in lines[-2:]] == ["4", "4"]
    set_status(run, "running")
    until_3 = "".join(lines[:-2])
    for end in range(len(until_3), len(whole)):
        (run / "diagnostics.csv").write_text(whole[:end])
        files = read_files(run)
        assert [list(row) for row in files.diagnostics.rows] == [
            line.strip().split(",") for line in until_3.splitlines()[1:]
        ]
        assert files.faults == {}
    set_status(run, "completed")
    assert "diagnostics.csv does not hold the whole run" in page_of(run, tmp_path).text


def test_with_privacy_a_round_may_have_no_diagnostics(run, tmp_path):
    (run / "diagnostics.csv").write_text("round,name,value\n2,client_states_lost,1\n")
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('privacy = "none"', 'privacy = "central"'))
    assert 'privacy = "none"' in config
    assert read_files(run).faults == {}


def test_names_that_matplotlib_cannot_draw_are_the_browsers(run, tmp_path):
    names = ["肺炎", "正常", "half \ud800"]
    manifest = read_json(run / "partition.json") | {"classes": names}
    (run / "partition.json").write_text(json.dumps(manifest))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = html_of(run, tmp_path)
    drawn = re.findall("<text[^>]*>(.*?)</text>", text, re.S)
    assert {"肺炎", "正常"} <= set(drawn)
    assert "<figcaption>half ?<small>" in text  # half a letter is none


def call(*arguments):
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def test_the_command(run, tmp_path):
    assert call(run).exit_code == 0
    assert (run / "report.html").exists()
    result = call(run, "--output", tmp_path / "mine.html")
    assert str(tmp_path / "mine.html") in result.output
    assert (tmp_path / "mine.html").read_text() == (run / "report.html").read_text()


def test_a_mistake_gets_one_sentence(run, tmp_path):
    (tmp_path / "empty").mkdir()
    for arguments, said in [
        ([tmp_path / "empty"], "is neither a run's folder (no summary.json) nor a comparison's"),
        ([tmp_path / "nowhere"], "is neither"),
        ([run, "--output", tmp_path / "nowhere" / "page.html"], "cannot be written"),
    ]:
        result = call(*arguments)
        assert result.exit_code == 1
        assert said in result.output
        assert result.output.count("\n") == 1


# --- a real browser -------------------------------------------------------------------------

PROBE = """(async () => {
document.querySelectorAll("details").forEach(part => part.open = true);
const channels = colour => (colour.match(/[0-9.]+/g) || []).map(Number);
const clear = colour => channels(colour)[3] === 0;
const luminance = colour => {
  const [r, g, b] = channels(colour).map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = element => {
  while (element && clear(getComputedStyle(element).backgroundColor))
    element = element.parentElement;
  return element ? getComputedStyle(element).backgroundColor : "rgb(255, 255, 255)";
};
const contrast = element => {
  const style = getComputedStyle(element);
  const text = luminance(element.closest("svg") ? style.fill : style.color);
  const ground = luminance(behind(element));
  return (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
};
const own = element => [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
const texts = [...document.body.querySelectorAll("*")].filter(e => own(e) && e.checkVisibility());
const pictures = [...document.images], drawings = [...document.querySelectorAll("svg")];
const embedded = [...document.querySelectorAll("svg image")].map(element => {
  const image = new Image();
  image.src = element.href.baseVal;
  image.alt = element.closest("svg").ariaLabel;
  return image;
});
await Promise.allSettled([...pictures, ...embedded].map(image => image.decode()));
const drawn = svg => svg.getBoundingClientRect().width > 100 && svg.getBBox().width > 100;
return {
  wrong: [
    ...[...pictures, ...embedded].filter(image => !image.naturalWidth).map(image => image.alt),
    ...drawings.filter(svg => !drawn(svg)).map(svg => svg.ariaLabel),
  ],
  over: document.documentElement.scrollWidth - innerWidth,
  pictures: pictures.length + drawings.length,
  texts: texts.length,
  faint: texts.filter(e => contrast(e) < 4.5).map(e => `${e.tagName} ${e.textContent}`),
  ground: behind(document.body),
};
})()"""
CHROMIUM = shutil.which("chromium")


class Browser:
    """A headless Chromium, told what to do over a pipe (Chrome DevTools Protocol)."""

    def __init__(self, profile):
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()
        command = ["bash", "-c", f'exec "$@" 3<&{reads} 4>&{writes}', "bash", str(CHROMIUM)]
        command += ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}"],
            pass_fds=(reads, writes),
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self._buffer, self.events, self._session = b"", [], {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        message = {"id": 1, "method": method, "params": parameters, **self._session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        return self.until(lambda answer: "id" in answer)["result"]

    def until(self, wanted):
        while True:
            while b"\0" not in self._buffer:
                assert select.select([self._from], [], [], 60)[0], "the browser says nothing"
                self._buffer += os.read(self._from, 2**16)
            text, _, self._buffer = self._buffer.partition(b"\0")
            message = json.loads(text)
            self.events.append(message)
            if wanted(message):
                return message

    def look(self, path, width=1400, scheme="light", media="screen"):
        """Open a page; return what the probe found and what the console said."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        if not self.said("Page.loadEventFired"):
            self.until(lambda message: message.get("method") == "Page.loadEventFired")
        found = self.call(
            "Runtime.evaluate", expression=PROBE, awaitPromise=True, returnByValue=True
        )
        return found["result"]["value"], self.said("Log.entryAdded", "Runtime.exceptionThrown")

    def said(self, *methods):
        return [event for event in self.events if event.get("method") in methods]

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)


@pytest.fixture
def browser(tmp_path):
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH")
    opened = Browser(tmp_path / "profile")
    yield opened
    opened.close()


@pytest.mark.browser
def test_a_browser_draws_every_picture_and_complains_of_nothing(browser, either, tmp_path):
    page = page_of(either, tmp_path)
    for width in (360, 500, 1400):
        for scheme, ground in (("light", "rgb(244, 246, 248)"), ("dark", "rgb(14, 17, 21)")):
            found, console = browser.look(tmp_path / "page.html", width, scheme)
            assert console == []
            assert found["wrong"] == []
            assert found["over"] <= 0  # nothing but tables and wide figures scrolls sideways
            assert found["pictures"] == len(page.all("img")) + len(page.all("svg"))
            assert found["texts"] > 100
            assert found["faint"] == []
            assert found["ground"] == ground


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_paper_everything_is_dark_on_white_and_within_the_margins(
    browser, either, tmp_path, scheme
):
    page_of(either, tmp_path)
    a4 = round((210 - 2 * 14) / 25.4 * 96)
    found, _ = browser.look(tmp_path / "page.html", a4, scheme, "print")
    assert found["wrong"] == []
    assert found["over"] <= 0
    assert found["texts"] > 100
    assert found["faint"] == []
    assert found["ground"] == "rgb(255, 255, 255)"


@pytest.mark.browser
def test_the_browser_check_finds_what_is_broken(browser, run, tmp_path):
    page_of(run, tmp_path)
    path = tmp_path / "page.html"
    broken = path.read_text().replace("data:image/png;base64,", "data:image/png;base64,A", 1)
    more = (
        '<img src="https://example.org/a.png" alt="x"><p style="color: var(--grid)">faint</p>'
        '<div style="width: 2000px">wide</div></body>'
    )
    path.write_text(broken.replace("</body>", more))
    found, console = browser.look(path)
    assert "x" in found["wrong"]
    assert len(found["wrong"]) == 2
    assert console
    assert found["faint"] == ["P faint"]
    assert found["over"] > 0
