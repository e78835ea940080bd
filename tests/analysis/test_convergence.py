"""Rounds to target and forgetting, by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedadb_app.analysis.convergence import forgetting, rounds_to, smooth


def test_smoothing_is_the_moving_average_with_factor_one_fifth():
    assert smooth([10.0, 20.0, 0.0]) == pytest.approx([10.0, 12.0, 9.6])
    assert smooth([]) == []


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30))
def test_smoothed_values_stay_between_the_extremes(accuracies):
    assert all(min(accuracies) - 1e-9 <= s <= max(accuracies) + 1e-9 for s in smooth(accuracies))


def test_the_first_round_that_reaches_the_target_counts_and_never_is_none():
    accuracies = [10.0, 60.0, 60.0, 0.0, 90.0]  # smoothed: 10, 20, 28, 22.4, 35.92
    rounds = [5, 10, 15, 20, 25]
    assert rounds_to(10.0, rounds, accuracies) == 5
    assert rounds_to(28.0, rounds, accuracies) == 15
    assert rounds_to(28.1, rounds, accuracies) == 25
    assert rounds_to(36.0, rounds, accuracies) is None


def test_forgetting_is_the_mean_drop_from_the_running_best():
    table = np.array([[50.0, 0.0], [20.0, 10.0], [60.0, 10.0], [0.0, 5.0]])
    # drops: 0 0 | 30 0 | 0 0 | 60 5
    assert forgetting(table) == pytest.approx(95 / 8)
    assert forgetting(np.array([[1.0, 2.0], [3.0, 2.0]])) == 0.0


def test_a_class_without_test_samples_does_not_count():
    table = np.array([[50.0, np.nan], [20.0, np.nan]])
    assert forgetting(table) == pytest.approx(15.0)
