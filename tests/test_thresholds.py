"""The threshold of two classes: by hand, and against every threshold there is."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedadb_app.errors import ConfigError, DataError
from fedadb_app.thresholds import at_threshold, operating_point

LABELS = np.array([0, 0, 0, 0, 1, 1, 1, 1])
PROBABILITIES = np.array([0.1, 0.2, 0.5, 0.7, 0.3, 0.6, 0.8, 0.9])


@pytest.mark.parametrize(
    ("asked", "threshold", "sensitivity", "specificity"),
    [
        (0.01, 0.9, 0.25, 1.0),
        (0.25, 0.9, 0.25, 1.0),
        (0.5, 0.8, 0.5, 1.0),
        (0.51, 0.6, 0.75, 0.75),
        (0.75, 0.6, 0.75, 0.75),
        (1.0, 0.3, 1.0, 0.5),
    ],
)
def test_the_threshold_is_the_hand_computed_one(asked, threshold, sensitivity, specificity):
    found = operating_point(LABELS, PROBABILITIES, asked)
    assert (found.threshold, found.sensitivity, found.specificity) == (
        threshold,
        sensitivity,
        specificity,
    )


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0])), min_size=1),
    st.floats(0.01, 1),
)
def test_no_other_threshold_with_that_sensitivity_is_more_specific(samples, asked):
    """Ties, and samples at the threshold itself, among them."""
    labels = np.array([1, *(int(positive) for positive, _ in samples)])
    probabilities = np.array([0.25, *(p for _, p in samples)])
    found = operating_point(labels, probabilities, asked)
    assert found.sensitivity >= asked
    negatives = probabilities[labels == 0]
    for other in [*np.unique(probabilities), 2.0]:
        if np.mean(probabilities[labels == 1] >= other) >= asked:
            assert found.threshold >= other
            assert not len(negatives) or found.specificity >= np.mean(negatives < other)


def test_a_share_that_a_float_does_not_hit_costs_no_sample():
    """0.07 * 100 is above 7 in floating point; seven of a hundred are enough."""
    probabilities = np.arange(1, 101) / 100
    found = operating_point(np.ones(100, np.int64), probabilities, 0.07)
    assert found.threshold == 0.94
    assert found.sensitivity == 0.07
    assert math.isnan(found.specificity)


def test_a_threshold_chosen_in_single_precision_holds_its_own_samples():
    """Probabilities are kept as float32: the threshold, a Python float, must not shift."""
    probabilities = np.array([1 / 3, 0.1, 0.7], np.float32)
    found = operating_point(np.array([1, 0, 1]), probabilities, 1.0)
    assert found.sensitivity == 1.0
    assert at_threshold(np.array([1]), probabilities[:1], found.threshold).sensitivity == 1.0


@pytest.mark.parametrize("asked", [0.0, -0.1, 1.01, math.nan])
def test_a_sensitivity_that_is_none_is_refused(asked):
    with pytest.raises(ConfigError, match=r"sensitivity .*above 0 and at most 1"):
        operating_point(LABELS, PROBABILITIES, asked)


def test_without_a_positive_sample_nothing_is_chosen():
    with pytest.raises(DataError, match="no validation image is of class 1"):
        operating_point(np.zeros(3, np.int64), np.ones(3), 0.9)
