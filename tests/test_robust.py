"""Robust means: what one client can do to them, numbers by hand, and brute-force twins."""

import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedadb_app.aggregation import difference, squared_norm
from fedadb_app.robust import clipped_mean, middle_mean, robust_mean, trimmed_at_each_end

RULES = ("clip-median", "trimmed-mean", "median")
TRAINED = ("weight",)
unhurried = settings(max_examples=50)
every_rule = pytest.mark.parametrize("rule", RULES)


def model(weight, running=(1.0,), counter=0):
    return {
        "weight": torch.tensor(weight, dtype=torch.float32),
        "running_var": torch.tensor(running, dtype=torch.float32),
        "steps": torch.tensor(counter),
    }


def norm(one, other, name="weight"):
    return squared_norm(difference(one, other, [name])) ** 0.5


@st.composite
def federations(draw, least=1, most=7):
    """What was sent, and the models of some clients."""
    clients = draw(st.integers(least, most))
    numbers = st.floats(-100, 100, width=32)
    weights = draw(arrays.arrays("float32", (clients + 1, 3), elements=numbers))
    variances = draw(
        arrays.arrays("float32", (clients + 1, 2), elements=st.floats(0, 64, width=32))
    )
    counters = draw(st.lists(st.integers(0, 1000), min_size=clients + 1, max_size=clients + 1))
    sent, *models = map(model, weights.tolist(), variances.tolist(), counters)
    return sent, models


# --- by hand --------------------------------------------------------------------------------


def test_three_clients_by_hand():
    """Of the movements (3, 4), (0, 1) and (0, -20) the norms are 5, 1 and 20, their median 5."""
    sent = model([1.0, 1.0])
    models = [model([4.0, 5.0]), model([1.0, 2.0]), model([1.0, -19.0])]
    clipped = clipped_mean(sent, models, TRAINED)  # the third moves by (0, -5)
    assert clipped["weight"].tolist() == pytest.approx([1 + 3 / 3, 1 + (4 + 1 - 5) / 3])
    assert middle_mean(models, 1)["weight"].tolist() == [1.0, 2.0]


def test_of_five_the_trimmed_mean_is_that_of_three_and_the_median_one():
    models = [model([x]) for x in (9.0, 1.0, 2.0, 6.0, -1e30)]
    sent = model([0.0])
    assert robust_mean("trimmed-mean", sent, models, TRAINED, 0.2)["weight"].item() == 3.0
    assert robust_mean("median", sent, models, TRAINED, 0.2)["weight"].item() == 2.0


@pytest.mark.parametrize(
    ("clients", "share", "cut"),
    [(1, 0.2, 0), (2, 0.2, 0), (3, 0.2, 1), (5, 0.2, 1), (6, 0.2, 2), (10, 0.3, 3), (4, 0.49, 1)],
)
def test_how_many_are_left_out(clients, share, cut):
    assert trimmed_at_each_end(clients, share) == cut


def test_running_statistics_have_a_limit_of_their_own():
    """Weights move by 1, 1 and 10, variances by 100, 200 and 1e6; the limits are 1 and 200."""
    sent = model([0.0], running=[0.0])
    models = [model([1.0], [100.0], 3), model([1.0], [200.0], 5), model([10.0], [1e6], 2**40)]
    mean = clipped_mean(sent, models, TRAINED)
    assert mean["weight"].item() == 1.0
    assert mean["running_var"].item() == pytest.approx(500 / 3)
    assert mean["steps"].item() == 5


def test_most_clients_that_stand_still_hold_the_model():
    sent = model([2.0])
    models = [sent, sent, model([50.0])]
    assert clipped_mean(sent, models, TRAINED)["weight"].item() == 2.0


# --- for all models -------------------------------------------------------------------------


@unhurried
@given(federations(), st.randoms())
@every_rule
def test_the_order_of_clients_does_not_matter(rule, federation, random):
    sent, models = federation
    shuffled = random.sample(models, len(models))
    one, other = (robust_mean(rule, sent, m, TRAINED, 0.2) for m in (models, shuffled))
    for name in sent:
        torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=1e-4)


@unhurried
@given(federations())
@every_rule
def test_where_all_are_alike_it_is_their_model(rule, federation):
    sent, (alike, *others) = federation
    mean = robust_mean(rule, sent, [alike] * (1 + len(others)), TRAINED, 0.2)
    assert mean.keys() == alike.keys()
    for name, tensor in alike.items():
        assert mean[name].dtype == tensor.dtype
        torch.testing.assert_close(mean[name], tensor, rtol=1e-6, atol=1e-5)


@unhurried
@given(federations(least=2), st.floats(-(2.0**100), 2.0**100, width=32))
@pytest.mark.parametrize("rule", ["trimmed-mean", "median"])
def test_one_client_cannot_move_a_coordinate_out_of_the_others_range(rule, federation, absurd):
    sent, others = federation
    hostile = {
        n: torch.full_like(t, absurd) if t.is_floating_point() else t for n, t in sent.items()
    }
    mean = robust_mean(rule, sent, [*others, hostile], TRAINED, 0.2)
    for name in ("weight", "running_var"):
        least, greatest = torch.stack([m[name] for m in others]).aminmax(dim=0)
        slack = 1e-6 * (1 + greatest.abs())
        assert bool((mean[name] >= least - slack).all())
        assert bool((mean[name] <= greatest + slack).all())


@unhurried
@given(federations(least=2), st.floats(-(2.0**60), 2.0**60, width=32))
def test_one_client_moves_the_clipped_mean_by_no_more_than_an_honest_one(federation, absurd):
    """At most by 1/m of the greatest norm among the others, whatever it sends."""
    sent, others = federation
    hostile = {**sent, "weight": torch.full_like(sent["weight"], absurd)}
    with_it = clipped_mean(sent, [*others, hostile], TRAINED)
    limit = max(norm(m, sent) for m in others)
    clipped = [min(norm(m, sent), limit) for m in others]
    assert norm(with_it, sent) <= (sum(clipped) + limit) / (len(others) + 1) * (1 + 1e-5) + 1e-4


@unhurried
@given(federations())
@every_rule
def test_variances_stay_variances_and_counters_whole(rule, federation):
    sent, models = federation
    mean = robust_mean(rule, sent, models, TRAINED, 0.2)
    assert bool((mean["running_var"] >= 0).all())
    assert mean["steps"].dtype == torch.int64
    counts = [int(m["steps"]) for m in models]
    assert min(counts) <= int(mean["steps"]) <= max(counts)


# --- brute-force twins ----------------------------------------------------------------------


@unhurried
@given(federations())
def test_the_median_is_that_of_each_coordinate(federation):
    sent, models = federation
    mean = robust_mean("median", sent, models, TRAINED, 0.2)["weight"]
    for place in range(3):
        column = [float(m["weight"][place]) for m in models]
        assert float(mean[place]) == pytest.approx(statistics.median(column), abs=1e-5)


@unhurried
@given(federations(), st.floats(0.01, 0.49))
def test_the_trimmed_mean_is_that_of_what_is_left(federation, share):
    sent, models = federation
    cut = trimmed_at_each_end(len(models), share)
    mean = robust_mean("trimmed-mean", sent, models, TRAINED, share)["weight"]
    for place in range(3):
        left = sorted(float(m["weight"][place]) for m in models)
        for _ in range(cut):
            left.remove(min(left))
            left.remove(max(left))
        assert float(mean[place]) == pytest.approx(statistics.mean(left), abs=1e-4)


@unhurried
@given(federations())
def test_the_clipped_mean_is_that_of_shortened_movements(federation):
    sent, models = federation
    moves = [
        [float(a - b) for a, b in zip(m["weight"], sent["weight"], strict=True)] for m in models
    ]
    lengths = [sum(x * x for x in move) ** 0.5 for move in moves]
    limit = statistics.median(lengths)
    expected = [float(x) for x in sent["weight"]]
    for move, length in zip(moves, lengths, strict=True):
        for place in range(3):
            shortened = move[place] * (limit / length if length > limit else 1)
            expected[place] += shortened / len(models)
    mean = clipped_mean(sent, models, TRAINED)["weight"]
    assert mean.tolist() == pytest.approx(expected, abs=1e-3)
