"""Metrics against MedMNIST's evaluator, scikit-learn, and values counted by hand."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import REPOSITORY
from hypothesis import given, settings
from hypothesis import strategies as st
from medmnist import Evaluator
from sklearn import metrics as sklearn_metrics

from fedadb_app.metrics import BETTER, PER_CLASS, metrics_of

FLAGS = {"pathmnist": 9, "pneumoniamnist": 2, "breastmnist": 2, "retinamnist": 5}
_SHARED = [above / "shared" / "data" for above in REPOSITORY.parents]


def probabilities_of(labels: np.ndarray, classes: int, seed: int = 0) -> np.ndarray:
    """Softmax outputs of a model that is right more often than not, with ties among them."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(len(labels), classes)) + 1.5 * np.eye(classes)[labels]
    odds = np.exp(np.round(logits, 1))
    return (odds / odds.sum(axis=1, keepdims=True)).astype(np.float32)


def official_file(flag: str, folder: Path) -> Path:
    """The official file where this machine has it, or one in its layout with random labels."""
    for shared in _SHARED:
        if (shared / f"{flag}.npz").is_file():
            return shared / f"{flag}.npz"
    rng = np.random.default_rng(1)
    np.savez(folder / f"{flag}.npz", test_labels=rng.integers(0, FLAGS[flag], (200, 1)))
    return folder / f"{flag}.npz"


@pytest.mark.parametrize("flag", FLAGS)
def test_auc_and_accuracy_are_those_of_medmnist(flag, tmp_path):
    path = official_file(flag, tmp_path)
    with np.load(path) as file:
        labels = file["test_labels"][:, 0].astype(np.int64)
    probabilities = probabilities_of(labels, FLAGS[flag])
    theirs = Evaluator(flag, "test", root=str(path.parent)).evaluate(probabilities)
    ours = metrics_of(labels, probabilities).whole
    assert 0.6 < theirs.AUC < 1
    assert ours["auc"] == pytest.approx(theirs.AUC, abs=1e-9)
    assert ours["accuracy"] == pytest.approx(100 * theirs.ACC, abs=1e-9)


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 6), st.integers(0, 60), st.integers(0, 2**32 - 1))
def test_counts_and_means_are_those_of_scikit_learn(classes, further, seed):
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, further)])
    probabilities = probabilities_of(labels, classes, seed)
    predicted = probabilities.argmax(axis=1)
    found = metrics_of(labels, probabilities)
    everyone: Any = {"labels": range(classes)}
    confusion = sklearn_metrics.confusion_matrix(labels, predicted, **everyone)
    assert np.array_equal(found.confusion, confusion)
    expected = {
        "accuracy": 100 * sklearn_metrics.accuracy_score(labels, predicted),
        "balanced-accuracy": 100 * sklearn_metrics.balanced_accuracy_score(labels, predicted),
        "macro-f1": sklearn_metrics.f1_score(labels, predicted, average="macro", **everyone),
    }
    assert {name: found.whole[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    one_against_all = (
        [labels == c for c in range(classes)],
        [predicted == c for c in range(classes)],
    )
    for c, (true, given_) in enumerate(zip(*one_against_all, strict=True)):
        sensitivity = 100 * sklearn_metrics.recall_score(true, given_)
        specificity = 100 * sklearn_metrics.recall_score(~true, ~given_)
        assert found.per_class["sensitivity"][c] == pytest.approx(sensitivity, abs=1e-12)
        assert found.per_class["specificity"][c] == pytest.approx(specificity, abs=1e-12)


def test_three_images_by_hand():
    labels = np.array([0, 1, 1])
    probabilities = np.array([[0.75, 0.25], [0.625, 0.375], [0.125, 0.875]])
    found = metrics_of(labels, probabilities)
    assert found.confusion.tolist() == [[1, 0], [1, 1]]
    assert found.per_class["sensitivity"].tolist() == [100, 50]
    assert found.per_class["specificity"].tolist() == [50, 100]
    assert found.whole["accuracy"] == pytest.approx(200 / 3)
    assert found.whole["balanced-accuracy"] == 75
    assert found.whole["macro-f1"] == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert found.whole["auc"] == 1  # both images of class 1 above the one of class 0
    # each in a bin of its own, of width 1/15
    assert found.whole["ece"] == pytest.approx((0.25 + 0.625 + 0.125) / 3)
    assert found.whole["brier"] == pytest.approx(2 * (0.25**2 + 0.625**2 + 0.125**2) / 3)


def test_images_of_one_bin_are_averaged_before_they_are_compared():
    # 0.91 and 0.92 lie in (13/15, 14/15], one right and one wrong: |1/2 - 0.915|
    probabilities = np.array([[0.91, 0.09], [0.92, 0.08]])
    ece = metrics_of(np.array([0, 1]), probabilities).whole["ece"]
    assert ece == pytest.approx(0.415)


def test_a_bin_has_its_upper_edge_and_the_first_begins_at_nothing():
    # 0.6 = 9/15 is the edge of the bin of 0.55; both right: |1 - 0.575|
    probabilities = np.array([[0.6, 0.4], [0.55, 0.45]])
    assert metrics_of(np.array([0, 0]), probabilities).whole["ece"] == pytest.approx(0.425)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_brier_is_that_of_scikit_learn_for_two_classes(seed):
    labels = np.random.default_rng(seed).permutation([0, 1] * 10)
    probabilities = probabilities_of(labels, 2, seed).astype(np.float64)
    theirs = sklearn_metrics.brier_score_loss(labels, probabilities[:, 1])
    found = metrics_of(labels, probabilities).whole["brier"]
    assert found == pytest.approx(2 * theirs, abs=1e-6)  # theirs counts one class of the two


@pytest.mark.filterwarnings("error")
def test_without_a_class_its_numbers_and_all_means_over_classes_are_unknown():
    labels = np.array([0, 0, 2, 2])
    probabilities = np.array([[0.7, 0.2, 0.1], [0.2, 0.7, 0.1], [0.1, 0.1, 0.8], [0.1, 0.1, 0.8]])
    found = metrics_of(labels, probabilities)
    unknown = {name for name, value in found.whole.items() if math.isnan(value)}
    assert unknown == {"balanced-accuracy", "macro-f1", "auc"}
    assert found.whole["accuracy"] == 75
    assert found.per_class["sensitivity"][[0, 2]].tolist() == [50, 100]
    assert math.isnan(found.per_class["sensitivity"][1])
    assert found.per_class["specificity"].tolist() == [100, 75, 100]


@pytest.mark.filterwarnings("error")
def test_where_all_images_are_of_one_class_it_has_no_specificity():
    found = metrics_of(np.array([1, 1]), np.array([[0.1, 0.9], [0.8, 0.2]]))
    assert found.per_class["specificity"][0] == 50
    assert math.isnan(found.per_class["specificity"][1])
    assert math.isnan(found.whole["auc"])


@pytest.mark.filterwarnings("error")
def test_of_a_diverged_model_only_the_counts_are_known():
    found = metrics_of(np.array([0, 1]), np.full((2, 2), np.nan))
    assert found.confusion.tolist() == [[1, 0], [1, 0]]
    assert found.whole["accuracy"] == 50
    assert all(math.isnan(found.whole[name]) for name in ("auc", "ece", "brier"))


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 5), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_every_metric_is_in_its_range_or_unknown(classes, images, seed):
    labels = np.random.default_rng(seed).integers(0, classes, images)
    found = metrics_of(labels, probabilities_of(labels, classes, seed))
    most = {"accuracy": 100, "balanced-accuracy": 100, "macro-f1": 1, "auc": 1, "ece": 1}
    assert found.whole.keys() == BETTER.keys()
    assert found.per_class.keys() == set(PER_CLASS)
    for name, value in found.whole.items():
        assert math.isnan(value) or 0 <= value <= most.get(name, 2)
    assert found.confusion.sum() == images
