"""The page of a run: its numbers are the files'."""

import base64
import io
import json
import re

import numpy as np
import pytest
from helpers import read_json
from PIL import Image
from report_pages import CLASSES, cells, html_of, keep_snapshot, page_of, set_status, write_run

from fedadb_app.report.run_page import spread


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


def test_the_round_that_validation_chose_is_shown(run, tmp_path):
    chosen = {"by": "val-auc", "round": 2, "value": 0.9, "test": {"accuracy": 33.33}}
    set_status(run, "completed", selection={"chosen": chosen})
    assert page_of(run, tmp_path).values["round 2, chosen by validation"] == "33.33 %"


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


def test_beta_has_the_horizon_that_the_run_gave_it(run, tmp_path):
    """(t / 1000)^(gamma tau), in a run of 4 rounds."""
    config = run / "config.toml"
    config.write_text(config.read_text().replace("beta-rounds = 0", "beta-rounds = 1000"))
    page = page_of(run, tmp_path)
    words = next(a for a in page.alternatives() if "lacks" in a)
    assert f"lacks 1 of 3 classes: {0.001 ** (1 / 3 * 0.2):g} in round 1" in words


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


def test_a_run_that_has_just_begun(tmp_path):
    folder = write_run(tmp_path, accuracies=(), anchors=False, **{"num-server-rounds": 9})
    set_status(folder, "running")
    page = page_of(folder, tmp_path, drawn=True)
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
    missing = page.text.partition("What is not here")[2].partition("Made by")[0]
    assert "anchor" not in missing.lower()
    assert "Class anchors" not in page.text


def test_the_method_says_what_its_diagnostics_are(tmp_path):
    folder = write_run(tmp_path, strategy="fedexp", anchors=False)
    with (folder / "diagnostics.csv").open("a") as file:
        file.write("4,extrapolation,1.5\n")
    alternatives = page_of(folder, tmp_path).alternatives()
    assert any("Server step size (extrapolation)" in words for words in alternatives)
    assert any("extra number" in words for words in alternatives)  # whose nobody says


def test_anchors_that_are_not_there_yet_are_missed(run, tmp_path):
    (run / "anchors.safetensors").unlink()
    assert "anchors.safetensors is not there" in page_of(run, tmp_path).text


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
    page = page_of(run, tmp_path, drawn=True)
    assert "which classes, only they know" in page.text
    assert not any("Heat map of samples" in a for a in page.alternatives())
    assert any("lacks 0 of 3 classes" in a for a in page.alternatives())


def test_many_classes_one_round(run, tmp_path):
    many = [f"class {c}" for c in range(200)]
    counts = np.ones((2, 200), int).tolist()
    clients = [{"size": 200, "class_counts": row} for row in counts]
    manifest = {"rule": "iid", "classes": many, "clients": clients}
    (run / "partition.json").write_text(json.dumps(manifest))
    lines = [",".join(["round", *many]), ",".join(["1", *["50.00"] * 200])]
    (run / "class_accuracy.csv").write_text("\n".join(lines) + "\n")
    assert len(page_of(run, tmp_path, drawn=True).all("svg")) >= 8
