"""Bootstrap intervals: each resample against the metrics themselves, and what they cover."""

import math

import numpy as np
import pytest

from fedadb_app.analysis.uncertainty import (
    drawn,
    interval,
    resampled_metrics,
    resampled_rates,
)
from fedadb_app.errors import DataError
from fedadb_app.metrics import PER_CLASS, metrics_of
from fedadb_app.thresholds import at_threshold


def predictions(count, classes, seed=0, decimals=2):
    """Labels and probabilities with many ties, as a model of middling skill gives them."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    scores = rng.exponential(size=(count, classes))
    scores[np.arange(count), labels] += 0.7
    probabilities = np.round(scores / scores.sum(axis=1, keepdims=True), decimals)
    probabilities[:, -1] = 1 - probabilities[:, :-1].sum(axis=1)
    return labels, probabilities.astype(np.float32)


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("groups", [None, np.arange(16) // 2])
def test_a_resample_has_the_metrics_of_its_images(classes, groups):
    """Of 16 images: so few that some resamples lack a class and have no AUC."""
    labels, probabilities = predictions(16, classes, seed=classes)
    found = resampled_metrics(labels, probabilities, groups, seed=3, resamples=12)
    (weights,) = drawn(16, groups, 3, 12)
    for r in range(12):
        images = np.repeat(np.arange(16), weights[:, r].astype(int))
        expected = metrics_of(labels[images], probabilities[images])
        for name, value in expected.whole.items():
            assert found[name, None][r] == pytest.approx(value, abs=1e-9, nan_ok=True), name
        for name in PER_CLASS:
            for c, value in enumerate(expected.per_class[name]):
                assert found[name, c][r] == pytest.approx(value, abs=1e-9, nan_ok=True), (name, c)


def test_every_metric_of_a_run_has_an_interval():
    labels, probabilities = predictions(30, 3)
    metrics = metrics_of(labels, probabilities)
    named = {(name, None) for name in metrics.whole}
    named |= {(name, c) for name in metrics.per_class for c in range(3)}
    assert set(resampled_metrics(labels, probabilities, None, 0, 5)) == named


def test_a_class_without_an_image_has_no_interval():
    labels, probabilities = predictions(30, 3)
    found = resampled_metrics(np.minimum(labels, 1), probabilities, None, 0, 20)
    for name in ("auc", "balanced-accuracy", "macro-f1"):
        assert interval(found[name, None]).defined == 0
    assert math.isnan(interval(found["sensitivity", 2]).low)
    assert interval(found["accuracy", None]).defined == 20


def test_a_diverged_model_has_the_intervals_of_its_counts_alone():
    labels, probabilities = predictions(30, 3)
    probabilities[4, 1] = np.nan
    found = resampled_metrics(labels, probabilities, None, 0, 20)
    assert [interval(found[name, None]).defined for name in ("auc", "ece", "brier")] == [0, 0, 0]
    assert interval(found["accuracy", None]).defined == 20


def test_the_ends_of_an_interval_are_percentiles():
    values = np.concatenate([np.arange(1001.0), [np.nan] * 7])
    found = interval(values)
    assert (found.low, found.high) == pytest.approx((25, 975))
    assert found.defined == 1001


def test_patients_are_drawn_whole():
    groups = np.array([7, 7, 2, 7, 9, 9])
    weights = np.concatenate(list(drawn(6, groups, 0, 50)), axis=1)
    assert (weights[[0, 1, 3]] == weights[0]).all()
    assert (weights[4] == weights[5]).all()
    assert (weights[[0, 2, 4]].sum(axis=0) == 3).all()  # as many patients as there are
    assert len(np.unique(weights, axis=1)[0]) > 5


def test_two_models_have_the_same_resamples_and_another_seed_has_others():
    labels, probabilities = predictions(50, 3)
    first, again, other = (
        resampled_metrics(labels, probabilities, None, seed, 40)["accuracy", None]
        for seed in (0, 0, 1)
    )
    assert (first == again).all()
    assert (first != other).any()


def test_how_many_are_computed_at_a_time_is_of_no_consequence(monkeypatch):
    before = np.concatenate(list(drawn(30, None, 0, 20)), axis=1)
    monkeypatch.setattr("fedadb_app.analysis.uncertainty._VALUES_AT_ONCE", 90)
    parts = list(drawn(30, None, 0, 20))
    assert [part.shape[1] for part in parts] == [3] * 6 + [2]
    assert (np.concatenate(parts, axis=1) == before).all()


@pytest.mark.parametrize(
    ("count", "groups", "said"),
    [
        (1, None, "at least two images in the test part, it has 1"),
        (3, np.array([5, 5, 5]), "at least two patients in the test part, it has 1"),
    ],
)
def test_one_image_or_one_patient_has_no_interval(count, groups, said):
    with pytest.raises(DataError, match=said):
        list(drawn(count, groups, 0, 10))


def test_rates_at_a_threshold_are_those_of_the_resample():
    labels, probabilities = predictions(40, 2)
    called = probabilities[:, 1] >= 0.4
    found = resampled_rates(labels, called, None, 5)
    weights = np.concatenate(list(drawn(40, None, 5, 2000)), axis=1)
    for r in (0, 7, 1999):
        images = np.repeat(np.arange(40), weights[:, r].astype(int))
        expected = at_threshold(labels[images], probabilities[images, 1], 0.4)
        assert found[0][r] == pytest.approx(expected.sensitivity)
        assert found[1][r] == pytest.approx(expected.specificity)


def coverage(rng, patients, images_each, by_patient, trials=200):
    """How often the interval of the accuracy holds the true one, 0.7.

    All images of a patient are classified correctly, or none.
    """
    groups = np.repeat(np.arange(patients), images_each)
    held = 0
    for trial in range(trials):
        right = (rng.random(patients) < 0.7)[groups]
        accuracy = [
            weights[right].sum(axis=0) / weights.sum(axis=0)
            for weights in drawn(len(groups), groups if by_patient else None, trial, 400)
        ]
        found = interval(np.concatenate(accuracy))
        held += found.low <= 0.7 <= found.high
    return held / trials


def test_intervals_hold_the_true_value_about_as_often_as_they_say():
    """Of 200 trials at 95 %, 0.95 ± 0.046 is three standard errors; bootstraps fall a bit short."""
    assert 0.90 <= coverage(np.random.default_rng(0), 100, 1, by_patient=False) <= 0.99
    assert 0.90 <= coverage(np.random.default_rng(1), 100, 4, by_patient=True) <= 0.99


def test_without_the_patients_they_would_be_too_narrow():
    assert coverage(np.random.default_rng(1), 100, 4, by_patient=False, trials=100) < 0.8
