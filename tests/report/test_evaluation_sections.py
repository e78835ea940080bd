"""The test images on a run's page: counts by hand, and what cannot be drawn is said."""

import shutil

import numpy as np
import pytest
from report_pages import CLASSES, cells, html_of, page_of

from fedadb_app.report.evaluation_charts import precision_recall, reliability, roc
from fedadb_app.runs.predictions import Predictions

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
