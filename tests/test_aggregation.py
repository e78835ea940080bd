"""Sample-weighted means of models."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedadb_app.aggregation import (
    ClientUpdate,
    absurd_change,
    all_finite,
    client_drift,
    difference,
    sample_weights,
    squared_norm,
    weighted_mean,
)


def updates(*counts: int) -> list[ClientUpdate]:
    return [ClientUpdate(i, {}, n) for i, n in enumerate(counts)]


def random_model(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(7, 5, generator=generator),
        "half": torch.randn(3, generator=generator).bfloat16(),
        "scalar": torch.randn((), generator=generator, dtype=torch.float64),
        "counter": torch.tensor(10 + seed),
    }


def test_weights_by_samples():
    assert sample_weights(updates(30, 10)) == [0.75, 0.25]
    assert sample_weights(updates(5)) == [1.0]
    assert sample_weights(updates(1, 2, 5)) == [0.125, 0.25, 0.625]


def test_thirty_and_ten_samples_mix_three_to_one():
    one, other = random_model(1), random_model(2)
    mean = weighted_mean([one, other], sample_weights(updates(30, 10)))
    expected = 0.75 * one["weight"].double().numpy() + 0.25 * other["weight"].double().numpy()
    np.testing.assert_allclose(mean["weight"].numpy(), expected, atol=1e-7, rtol=0)
    assert float(mean["scalar"]) == pytest.approx(
        0.75 * float(one["scalar"]) + 0.25 * float(other["scalar"]), abs=1e-15
    )


def test_one_client_is_returned_bit_by_bit():
    model = random_model(3)
    mean = weighted_mean([model], [1.0])
    assert list(mean) == list(model)
    for name, tensor in model.items():
        assert mean[name].dtype == tensor.dtype
        assert mean[name].shape == tensor.shape
        assert torch.equal(mean[name], tensor)
        assert mean[name] is not tensor


def test_equal_clients_give_themselves():
    model = random_model(4)
    mean = weighted_mean([model] * 3, sample_weights(updates(1, 2, 5)))  # weights exact in binary
    assert all(torch.equal(mean[name], tensor) for name, tensor in model.items())


@pytest.mark.parametrize(
    ("counters", "counts", "expected"),
    [((10, 20), (30, 10), 12), ((10, 21), (1, 3), 18), ((3, 4), (1, 3), 4), ((5, 6), (7, 1), 5)],
)
def test_counters_are_rounded_to_the_nearest(counters, counts, expected):
    models = [{"n": torch.tensor(c)} for c in counters]  # 12.5 -> 12 (to even), 18.25, 3.75, 5.125
    mean = weighted_mean(models, sample_weights(updates(*counts)))
    assert mean["n"].dtype == torch.int64
    assert int(mean["n"]) == expected


def test_sums_are_float64():
    # in float32, 1e8 + 1 is 1e8 and the 1 is lost
    models = [{"x": torch.tensor([v])} for v in (1e8, 1.0, -1e8)]
    mean = weighted_mean(models, [0.25, 0.5, 0.25])
    assert mean["x"].dtype == torch.float32
    assert mean["x"].item() == 0.5


def test_the_inputs_stay_as_they_are():
    models = [random_model(1), random_model(2)]
    before = [{name: t.clone() for name, t in m.items()} for m in models]
    weighted_mean(models, [0.75, 0.25])
    for model, copy in zip(models, before, strict=True):
        assert all(torch.equal(model[name], copy[name]) for name in copy)


counts = st.lists(st.integers(1, 10**9), min_size=1, max_size=20)


@given(counts)
def test_weights_sum_to_one_and_follow_the_samples(counts):
    weights = sample_weights(updates(*counts))
    assert sum(weights) == pytest.approx(1, abs=1e-12)
    assert all(0 < w <= 1 for w in weights)
    order = sorted(range(len(counts)), key=counts.__getitem__)
    assert [weights[i] for i in order] == sorted(weights)


@settings(max_examples=60)
@given(
    counts.flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(
                st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=2),
                min_size=len(n),
                max_size=len(n),
            ),
        )
    )
)
def test_the_mean_lies_between_the_clients(case):
    counts, values = case
    models = [{"x": torch.tensor(v)} for v in values]
    mean = weighted_mean(models, sample_weights(updates(*counts)))["x"]
    stacked = torch.stack([m["x"] for m in models]).double()
    slack = 1e-12 + stacked.abs().amax(0) * 1e-6
    assert (mean >= stacked.amin(0) - slack).all()
    assert (mean <= stacked.amax(0) + slack).all()
    exact = np.average(stacked.numpy(), axis=0, weights=np.array(counts, float))
    np.testing.assert_allclose(mean.numpy(), exact, rtol=1e-6, atol=1e-3)


def test_difference_and_norm_in_float64():
    model = {"a": torch.tensor([1e8, 3.0]), "b": torch.tensor([5.0]), "n": torch.tensor(9)}
    reference = {"a": torch.tensor([0.0, 1.0]), "b": torch.tensor([1.0]), "n": torch.tensor(2)}
    found = difference(model, reference, ["a", "b"])
    assert {name: t.tolist() for name, t in found.items()} == {"a": [1e8, 2.0], "b": [4.0]}
    assert all(t.dtype == torch.float64 for t in found.values())
    assert squared_norm({"x": torch.tensor([3.0, 4.0]), "y": torch.tensor(2.0)}) == 29
    # float32 would lose the 4: 1e16 + 4
    assert squared_norm({"a": found["a"]}) == 1e16 + 4
    assert squared_norm({"x": torch.tensor([1e8, 2.0])}) == 1e16 + 4


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_value_is_found(value):
    model = random_model(0)
    assert all_finite(model)
    model["weight"][6, 4] = value
    assert not all_finite(model)


@pytest.mark.parametrize(
    ("moved", "factor", "absurd"),
    [(9.9, 10.0, False), (10.1, 10.0, True), (1e9, 0.0, False), (0.0, 1e-9, False)],
)
def test_a_change_is_absurd_from_c_times_the_model_on(moved, factor, absurd):
    sent = {"w": torch.tensor([3.0, 4.0]), "count": torch.tensor(7)}  # of norm 5
    model = {"w": sent["w"] + torch.tensor([5 * moved, 0.0]), "count": torch.tensor(10**6)}
    assert bool(absurd_change(model, sent, {"w"}, factor)) == absurd


@pytest.mark.parametrize(("moved", "absurd"), [(99.0, False), (101.0, True)])
def test_variances_are_squares(moved, absurd):
    sent = {"w": torch.ones(1), "running_var": torch.ones(1)}
    model = {"w": torch.ones(1), "running_var": torch.tensor([1 + moved])}
    assert bool(absurd_change(model, sent, {"w"}, 10.0)) == absurd


# --- drift ----------------------------------------------------------------------------------


def moved(*values: float) -> dict[str, Tensor]:
    """A model of two parameters and a buffer, so far from `moved(0, 0)`."""
    a, b = (torch.tensor([1 + value], dtype=torch.float64) for value in values)
    return {"a": a, "b": b, "running_mean": torch.tensor([99.0 * sum(values)])}


def drift(changes, weights) -> dict[str, float]:
    return client_drift([moved(*c) for c in changes], moved(0, 0), ["a", "b"], weights)


def test_drift_by_hand():
    found = drift([(3, 4), (-3, 4)], [0.5, 0.5])
    assert found == {"update_norm": 4.0, "client_update_norm": 5.0, "client_drift": 3.0}


def test_clients_that_move_alike_do_not_drift():
    found = drift([(3, 4), (3, 4)], [0.25, 0.75])
    assert found == {"update_norm": 5.0, "client_update_norm": 5.0, "client_drift": 0.0}


def test_drift_is_weighted_by_samples():
    found = drift([(0, 4), (0, 0)], [0.25, 0.75])
    assert found["update_norm"] == 1.0
    assert found["client_update_norm"] == 1.0
    assert found["client_drift"] == pytest.approx((0.25 * 3**2 + 0.75 * 1**2) ** 0.5)


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1, max_size=6))
def test_drift_is_the_mean_distance_from_the_mean(changes):
    found = drift(changes, [1 / len(changes)] * len(changes))
    points = np.array(changes)
    apart = ((points - points.mean(axis=0)) ** 2).sum(axis=1).mean() ** 0.5
    assert found["client_drift"] == pytest.approx(apart, abs=1e-6)
