"""The noised mean, and what releasing it costs."""

import itertools
import math

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import kstest, norm

from fedadb_app.config import RunConfig
from fedadb_app.privacy import epsilon_spent, gaussian_epsilon, noised_mean


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def model(*values: float) -> dict[str, torch.Tensor]:
    """Two tensors, so that a norm per tensor would be another one."""
    weight, bias = torch.tensor(values, dtype=torch.float64).split([len(values) - 1, 1])
    return {"weight": weight, "bias": bias}


# --- the mean -------------------------------------------------------------------------------


def test_clipped_equally_weighted_and_divided_by_all_who_were_asked():
    """Movements (3, 0, 4), of norm 5, and (0, 0.5, 0), of norm 0.5; C = 1, four were asked."""
    reference = model(1, 2, 3)
    models = [model(4, 2, 7), model(1, 2.5, 3)]
    found = noised_mean(reference, models, 4, 1.0, 0.0, rng())
    assert found["weight"].tolist() == pytest.approx([1 + 0.6 / 4, 2 + 0.5 / 4], rel=1e-15)
    assert found["bias"].tolist() == pytest.approx([3 + 0.8 / 4], rel=1e-15)


def test_a_movement_within_the_norm_is_not_lengthened():
    found = noised_mean(model(0, 0, 0), [model(0.5, 0, 0)], 1, 10.0, 0.0, rng())
    assert found["weight"].tolist() == [0.5, 0]


def test_a_client_that_does_not_move_is_no_error():
    found = noised_mean(model(1, 2, 3), [model(1, 2, 3)], 1, 1.0, 0.0, rng())
    assert found["weight"].tolist() == [1, 2]


coordinates = st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3)


@given(
    others=st.lists(coordinates, max_size=4),
    one=coordinates,
    absent=st.integers(0, 3),
    clipping_norm=st.floats(0.01, 100),
)
@settings(max_examples=100)
def test_no_client_moves_the_release_by_more_than_its_share(others, one, absent, clipping_norm):
    """What makes the guarantee true: with and without the client, the same noise."""
    drawn = len(others) + 1 + absent
    settings_ = (drawn, clipping_norm, 1.0)
    without = [model(*other) for other in others]
    found = noised_mean(model(0, 0, 0), [model(*one), *without], *settings_, rng(3))
    less = noised_mean(model(0, 0, 0), without, *settings_, rng(3)) if without else None
    if less is None:  # nobody left: the reference and the noise
        less = noised_mean(model(0, 0, 0), [model(0, 0, 0)], *settings_, rng(3))
    moved = math.sqrt(sum(float((found[n] - less[n]).square().sum()) for n in found))
    assert moved <= clipping_norm / drawn * (1 + 1e-6)


@pytest.mark.parametrize(("drawn", "answered"), [(1, 1), (5, 5), (5, 2)])
def test_the_noise_is_gaussian_with_the_calibrated_deviation(drawn, answered):
    """z C / m in every coordinate, whoever answered: 60 000 draws, so 1 % off is 3.5 sigma."""
    start = {"a": torch.zeros(100, 300), "b": torch.full((30_000,), 7.0)}
    found = noised_mean(start, [start] * answered, drawn, 3.0, 0.7, rng(1))
    noise = {name: ((found[name] - start[name]) * drawn / (0.7 * 3.0)).flatten() for name in start}
    both = torch.cat(list(noise.values())).numpy()
    assert both.std() == pytest.approx(1, abs=0.01)
    assert kstest(both, norm.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(noise["a"], noise["b"])[0, 1]) < 0.03  # independent across tensors


def test_small_movements_are_not_lost_in_single_precision():
    """Each is a quarter of the sum's last place: added up in float32, all four would vanish."""
    one = {"weight": torch.ones(1)}
    up = {"weight": torch.nextafter(torch.ones(1), torch.full((1,), 2.0))}
    far = {"weight": torch.full((1,), 5.0)}
    found = noised_mean(one, [far, up, up, up, up], 1, 10.0, 0.0, rng())
    assert found["weight"].dtype == torch.float32
    assert found["weight"].item() == 5 + 4 * 2**-23


def test_flowers_wrapper_gives_the_same_where_all_answer_and_weigh_alike():
    """Its clipping norm, noise multiplier and number of clients mean what ours do."""
    generator = rng(5)
    reference = model(*generator.normal(size=6))
    models = [model(*generator.normal(size=6) * scale) for scale in (0.1, 1, 10)]
    ours = noised_mean(reference, models, 3, 1.5, 0.0, rng())

    wrapper = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, 1.5, 3)
    wrapper.current_arrays = arrays(reference)
    replies = []
    for trained in models:
        asked = Message(RecordDict(), dst_node_id=5, message_type="train")
        content = {"arrays": arrays(trained), "metrics": MetricRecord({"num-examples": 1})}
        replies.append(Message(RecordDict(content), reply_to=asked))
    theirs, _ = wrapper.aggregate_train(1, replies)
    for name, tensor in ours.items():
        assert theirs[name].numpy() == pytest.approx(tensor.numpy(), abs=1e-6)


def arrays(state: dict[str, torch.Tensor]) -> ArrayRecord:
    return ArrayRecord({name: Array(tensor.numpy()) for name, tensor in state.items()})


# --- what it costs --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("multiplier", "rounds", "delta", "published"),
    [
        (3.7306, 1, 1e-5, 1.0),  # Balle & Wang's analytic calibration for epsilon = 1
        # Google's dp-accounting 0.6.0, PLDAccountant, discretised to 1e-4
        (1.0, 1, 1e-5, 4.3772),
        (1.0, 10, 1e-5, 17.8566),
        (0.5, 4, 1e-5, 24.3816),
        (2.0, 100, 1e-6, 35.5663),
        (4.0, 20, 1e-5, 4.9833),
        (10.0, 1, 1e-5, 0.34067),
    ],
)
def test_published_values(multiplier, rounds, delta, published):
    assert gaussian_epsilon(math.sqrt(rounds) / multiplier, delta) == pytest.approx(
        published, rel=1e-4
    )


def divergence(mu: float, epsilon: float) -> float:
    """Delta by its definition: the integral of max(0, p - e^epsilon q), p and q mu apart."""
    ratio = math.exp(epsilon)
    found, _ = quad(
        lambda x: max(0.0, norm.pdf(x, mu) - ratio * norm.pdf(x)),
        epsilon / mu + mu / 2,  # where p = e^epsilon q
        mu + 40,
        epsabs=1e-14,
    )
    return found


@pytest.mark.parametrize("mu", [0.05, 0.3, 1.0, 2.5, 6.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-7])
def test_epsilon_against_the_definition(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    assert divergence(mu, epsilon) == pytest.approx(delta, rel=1e-4)
    assert divergence(mu, 1.01 * epsilon) < delta < divergence(mu, 0.99 * epsilon)


def test_almost_no_signal_costs_nothing():
    assert gaussian_epsilon(1e-6, 1e-5) == 0.0


@pytest.mark.parametrize("mu", [1e-3, 1e5, 2e6])
@pytest.mark.parametrize("delta", [1e-12, 0.999])
def test_extreme_values_give_a_number(mu, delta):
    assert 0 <= gaussian_epsilon(mu, delta) <= mu**2 / 2 + 8 * mu


def test_local_counts_twice_the_reach_and_none_says_nothing():
    values = {"noise_multiplier": 2.0, "delta": 1e-6}
    central = epsilon_spent(RunConfig(privacy="central", **values), 9)
    local = epsilon_spent(RunConfig(privacy="local", **values), 9)
    assert central == gaussian_epsilon(1.5, 1e-6)
    assert local == gaussian_epsilon(3.0, 1e-6)
    assert math.isnan(epsilon_spent(RunConfig(**values), 9))


def test_every_round_costs_more():
    spent = [epsilon_spent(RunConfig(privacy="central"), n) for n in range(1, 50)]
    assert all(a < b for a, b in itertools.pairwise(spent))
