"""Test images and sites on a run's page: counts by hand, and what cannot be drawn is said."""

import shutil

import numpy as np
import pytest
from report_pages import CLASSES, cells, html_of, page_of

from fedadb_app.report.evaluation_charts import precision_recall, reliability, roc
from fedadb_app.runs.predictions import Predictions
from fedadb_app.runs.record import METRICS_HEADER
from fedadb_app.runs.sites import Site, over_sites, write_sites

LABELS = np.array([0, 0, 0, 1, 1, 2])
GIVEN = np.array([0, 0, 1, 1, 1, 1])
FINAL = np.eye(3, dtype=np.float32)[GIVEN] * 0.7 + 0.1


@pytest.fixture
def evaluated(run):
    Predictions(LABELS, FINAL, 4, chosen=FINAL[::-1].copy(), chosen_round=2).write(run, CLASSES)
    return run


def test_the_confusion_matrix_of_both_models_is_there(evaluated, tmp_path):
    alternatives = page_of(evaluated, tmp_path).alternatives()
    last, chosen = [a for a in alternatives if a.startswith("Confusion matrix, ")]
    assert "last round, 4: 4 of 6 images are right" in last
    assert f"1 of 3 images of {CLASSES[0]} are taken for {CLASSES[1]}" in last
    assert "chosen round, 2: 1 of 6 images are right" in chosen
    (calibration,) = [a for a in alternatives if a.startswith("Reliability")]
    assert "last round, 4: 100 % of the images have a top probability about 80 %" in calibration
    assert "of which 67 % are right" in calibration
    assert not [a for a in alternatives if a.startswith(("ROC", "Precision"))]  # three classes


def test_its_pictures_can_be_drawn(evaluated, tmp_path):
    html = html_of(evaluated, tmp_path, drawn=True)
    assert "share of the true class" in html
    assert "<script" not in html


def test_curves_of_two_classes_are_those_counted_by_hand():
    labels = np.array([0, 1, 0, 1])
    second = np.array([0.1, 0.4, 0.35, 0.8])
    models = {"last": np.stack([1 - second, second], axis=1)}
    assert "last: at 90 % specificity 100.0 % sensitivity" in roc(labels, models).alternative
    said = precision_recall(labels, models).alternative
    assert "last: at 90 % recall 100.0 % precision; 50.0 % of the images are of class 1" in said
    swapped = np.array([0.1, 0.3, 0.35, 0.8])  # one of class 0 above one of class 1
    models = {"last": np.stack([1 - swapped, swapped], axis=1)}
    assert "specificity 50.0 % sensitivity" in roc(labels, models).alternative
    assert "recall 66.7 % precision" in precision_recall(labels, models).alternative
    for picture in (roc(labels, models), precision_recall(labels, models)):
        assert picture.svg


def test_the_worst_bin_is_named():
    labels = np.zeros(10, np.int64)
    top = np.array([0.95] * 8 + [0.65] * 2)
    first = np.where(np.arange(10) < 4, top, 1 - top)  # of the confident eight, four are right
    said = reliability(labels, {"last": np.stack([first, 1 - first], axis=1)}).alternative
    assert "80 % of the images have a top probability about 95 %, of which 50 % are right" in said


def test_the_tables_of_fedadb_evaluate_are_there(evaluated, tmp_path):
    assert (
        "intervals.csv is not there: `fedadb evaluate` writes it"
        in page_of(evaluated, tmp_path).text
    )
    (evaluated / "intervals.csv").write_text("model,metric,value\nfinal,accuracy,66.6667\n")
    (evaluated / "intervals.tex").write_text("\\toprule <b>\n")
    page = page_of(evaluated, tmp_path)
    assert cells(evaluated / "intervals.csv") in page.tables
    assert r"\toprule <b>" in page.text
    assert "intervals.csv is not there" not in page.text


def test_without_predictions_the_page_says_so(run, tmp_path):
    page = page_of(run, tmp_path)
    assert "predictions.npz is not there: a run whose server evaluates ends with it" in page.text
    assert "Test images" not in page.text


def test_damaged_predictions_are_named_and_the_rest_is_shown(evaluated, tmp_path):
    (evaluated / "predictions.npz").write_bytes(b"PK")
    page = page_of(evaluated, tmp_path)
    assert f"{evaluated / 'predictions.npz'} cannot be read" in page.text
    assert cells(evaluated / "rounds.csv") in page.tables


def test_predictions_of_other_classes_are_named(evaluated, tmp_path):
    two = np.full((4, 2), 0.5, np.float32)
    other = shutil.copytree(evaluated, tmp_path / "other")
    Predictions(np.array([0, 1, 0, 1]), two, 4).write(other, CLASSES[:2])
    assert "predictions.npz has 2 classes, the run 3" in page_of(other, tmp_path).text


def test_a_diverged_model_has_its_confusion_matrix_alone(run, tmp_path):
    probabilities = np.full((6, 3), np.nan, np.float32)
    Predictions(LABELS, probabilities, 4).write(run, CLASSES)
    alternatives = page_of(run, tmp_path).alternatives()
    assert [a for a in alternatives if a.startswith("Confusion matrix, ")]
    assert not [a for a in alternatives if a.startswith("Reliability")]


# --- sites ----------------------------------------------------------------------------------


@pytest.fixture
def of_sites(run):
    """Three sites with 50, 80 and 100 % in round 4, of which one tells of its classes."""
    sites = {7: Site(10, 5), 8: Site(60, 48, (30, 30, -1), (20, -1, -1)), 9: Site(30, 30)}
    write_sites(run, 4, sites, CLASSES)
    rows = [",".join(METRICS_HEADER)]
    for t in (1, 2, 3, 4):
        values = over_sites({7: Site(10, 2), 8: Site(60, 30)} if t < 4 else sites)
        rows += [f"{t},clients,{name},,{value:.6g}" for name, _, value in values]
    (run / "metrics.csv").write_text("\n".join(rows) + "\n")
    return run


def test_each_site_is_there_with_its_images(of_sites, tmp_path):
    page = page_of(of_sites, tmp_path)
    assert page.values["the worst site"] == "site 7, 50.00 % of 10 images"
    assert page.values["mean of the worst tenth of the sites"] == "50 %"
    spread = np.std([50, 80, 100])
    assert page.values["standard deviation over sites"] == f"{spread:.6g} points"
    assert page.values["sites"] == "3"
    table = next(t for t in page.tables if t[0][0] == "site")
    assert [row[:4] for row in table[1:]] == [
        ["7", "10", "5", "50.00"],
        ["8", "60", "48", "80.00"],
        ["9", "30", "30", "100.00"],
    ]
    (told,) = [t for t in page.tables if t[0][:3] == ["round", "site", "class"]]
    assert {(row[1], row[2]) for row in told[1:]} == {("8", CLASSES[0]), ("8", CLASSES[1])}
    (picture,) = [a for a in page.alternatives() if "Accuracy over sites" in a]
    assert "worst site: 20 in round 1, 50 in round 4" in picture
    assert "after round 4" in page.text


def test_without_sites_there_is_no_such_section(run, tmp_path):
    assert "What each site found" not in page_of(run, tmp_path).text


def test_damaged_sites_are_named_and_the_rest_is_shown(of_sites, tmp_path):
    (of_sites / "sites.csv").write_text("round,site\n")
    page = page_of(of_sites, tmp_path)
    assert f"{of_sites / 'sites.csv'} cannot be read" in page.text
    assert cells(of_sites / "rounds.csv") in page.tables
