"""Tests of difference: values by hand, from tables, and Demšar's own example."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from fedadb_app.analysis.significance import Ranking, holm, mcnemar, paired_test, ranking

# Demšar (JMLR 7, 2006), Table 6: AUC of C4.5, C4.5+m, C4.5+cf and C4.5+m+cf on 14 data sets. Of
# the last two, equal in print on the last but one, his ranks say that the first is better.
DEMSAR = np.array(
    [
        [0.763, 0.768, 0.771, 0.798],
        [0.599, 0.591, 0.590, 0.569],
        [0.954, 0.971, 0.968, 0.967],
        [0.628, 0.661, 0.654, 0.657],
        [0.882, 0.888, 0.886, 0.898],
        [0.936, 0.931, 0.916, 0.931],
        [0.661, 0.668, 0.609, 0.685],
        [0.583, 0.583, 0.563, 0.625],
        [0.775, 0.838, 0.866, 0.875],
        [1.000, 1.000, 1.000, 1.000],
        [0.940, 0.962, 0.965, 0.962],
        [0.619, 0.666, 0.614, 0.669],
        [0.972, 0.981, 0.9751, 0.975],
        [0.957, 0.978, 0.946, 0.970],
    ]
)


def test_a_paired_test_is_the_one_computed_by_hand():
    """Mean 3, standard deviation sqrt(2.5), t = 3 / sqrt(0.5); all five signs alike: 2 / 32."""
    found = paired_test([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.pairs, found.mean, found.median) == (5, 3.0, 3.0)
    assert found.effect == pytest.approx(3 / math.sqrt(2.5))
    # Student's t with 4 degrees of freedom has a closed form: 1 - x (1 + y / 2), y = 4 / (4 + t^2)
    t, share = 3 / math.sqrt(0.5), 4 / (4 + 18)
    assert found.t == pytest.approx(1 - t / math.sqrt(4 + t * t) * (1 + share / 2))
    assert found.wilcoxon == pytest.approx(2 / 32)


def test_two_pairs_are_the_least_that_can_be_tested():
    """t = 3 with one degree of freedom, the Cauchy distribution: 1 - 2 atan(3) / pi."""
    found = paired_test([1.0, 2.0])
    assert found.t == pytest.approx(1 - 2 * math.atan(3) / math.pi)
    assert found.wilcoxon == pytest.approx(0.5)
    one = paired_test([2.0])
    assert (one.pairs, one.mean, one.median) == (1, 2.0, 2.0)
    assert all(math.isnan(value) for value in (one.effect, one.t, one.wilcoxon))


def test_differences_without_spread():
    same = paired_test([0.0, 0.0, 0.0])
    assert (same.t, same.wilcoxon) == (1.0, 1.0)
    assert math.isnan(same.effect)
    less = paired_test([-0.5, -0.5, -0.5])
    assert (less.t, less.effect) == (0.0, -math.inf)


@pytest.mark.parametrize(
    "differences", [[1.0, -2.5], [0.5, 3.0, -1.0, 0.25], [0.0, 1.0, 2.0, -4.0]]
)
def test_the_other_way_round_only_the_signs_change(differences):
    found, turned = paired_test(differences), paired_test([-d for d in differences])
    assert turned.t == pytest.approx(found.t)
    assert turned.wilcoxon == pytest.approx(found.wilcoxon)
    assert turned.mean == -found.mean


def test_holm_is_the_one_computed_by_hand():
    """0.01 x 4, 0.02 x 3, then 0.03 x 2 = 0.06 does not fall below 0.06, and 0.9."""
    assert holm([0.03, 0.01, 0.9, 0.02]) == pytest.approx([0.06, 0.04, 0.9, 0.06])
    assert holm([0.5, 0.6]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_holm_leaves_out_what_is_no_number():
    first, none, second = holm([0.01, math.nan, 0.04])
    assert (first, second) == pytest.approx((0.02, 0.04))
    assert math.isnan(none)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_lies_between_no_correction_and_bonferronis(p_values):
    for before, after in zip(p_values, holm(p_values), strict=True):
        assert before <= after <= min(1, before * len(p_values)) + 1e-12


def test_ranks_are_demsars():
    found = ranking(DEMSAR)
    assert found.mean_ranks == pytest.approx([3.143, 2.000, 2.893, 1.964], abs=5e-4)
    assert found.critical_difference == pytest.approx(1.25, abs=5e-3)
    assert found.blocks == 14
    # His chi-square, 9.28, does without the correction for ties that scipy makes: 10.04 with it.
    assert 0.01 < found.p_value < chi2.sf(9.28, 3)


@pytest.mark.parametrize(
    ("count", "q"), [(3, 2.343), (4, 2.569), (5, 2.728), (8, 3.031), (10, 3.164)]
)
def test_the_critical_difference_has_demsars_quantiles(count, q):
    values = np.random.default_rng(count).normal(size=(6, count))
    expected = q * math.sqrt(count * (count + 1) / 36)
    assert ranking(values).critical_difference == pytest.approx(expected, rel=3e-4)


def test_too_few_blocks_or_methods_have_no_ranking():
    assert ranking(np.zeros((4, 3))) is None
    assert ranking(np.zeros((9, 2))) is None


def test_methods_that_are_all_alike_share_their_rank():
    found = ranking(np.ones((5, 3)))
    assert found.mean_ranks.tolist() == [2, 2, 2]
    assert found.p_value == 1
    assert found.groups() == [(0, 1, 2)]


@pytest.mark.parametrize(
    ("ranks", "difference", "groups"),
    [
        ([4.0, 1.0, 2.0, 3.0], 1.5, [(1, 2), (2, 3), (3, 0)]),
        ([1.0, 2.0, 3.0], 2.5, [(0, 1, 2)]),
        ([1.0, 2.0, 3.0], 1.0, []),  # just as far apart is apart
        ([1.0, 1.2, 3.0, 3.1], 0.5, [(0, 1), (2, 3)]),
        ([1.0, 1.4, 1.8, 1.89], 0.5, [(0, 1), (1, 2, 3)]),
    ],
)
def test_groups_are_the_largest_that_hold_no_difference(ranks, difference, groups):
    assert Ranking(np.array(ranks), 0.01, difference, 9).groups() == groups


def test_mcnemar_is_the_one_computed_by_hand():
    """6 against 1 of 7 tosses: 2 (1 + 7) / 2^7."""
    first = np.array([1] * 6 + [0] * 1 + [1] * 5 + [0] * 3, bool)
    second = np.array([0] * 6 + [1] * 1 + [1] * 5 + [0] * 3, bool)
    found = mcnemar(first, second)
    assert (found.only_first, found.only_second) == (6, 1)
    assert found.p_value == pytest.approx(16 / 128)
    turned = mcnemar(second, first)
    assert (turned.only_first, turned.p_value) == (1, pytest.approx(16 / 128))
    assert mcnemar(first, first).p_value == 1
