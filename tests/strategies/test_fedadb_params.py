"""FedADB's own values, and the weight beta of the local head."""

import pytest
import torch
from fedadb_cases import ALL_CLASSES, TWO_CLASSES, anchors, begun, local_data, task

from fedadb_app.anchors import AnchorSettings
from fedadb_app.errors import ConfigError
from strategies.fedadb import FedADBParams
from strategies.registry import read_run_config

# --- beta -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "t", "total", "tau", "expected"),
    [
        (TWO_CLASSES, 5, 20, 0.8, 0.25 ** (0.5 * 0.8)),
        ([1], 1, 100, 0.9, 0.01 ** (0.75 * 0.9)),
        (TWO_CLASSES, 20, 20, 0.8, 1.0),
        (ALL_CLASSES, 1, 1000, 0.9, 1.0),
    ],
)
def test_beta_counts_the_clients_own_classes_and_not_the_anchors(labels, t, total, tau, expected):
    job = task(local_data(labels), anchors(tau), t, total)
    assert begun(FedADBParams(), job).beta == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("horizon", "t", "r"), [(0, 5, 5 / 20), (1000, 5, 5 / 1000), (10, 5, 5 / 10), (10, 15, 1.0)]
)
def test_the_horizon_of_beta_may_be_another_than_the_runs(horizon, t, r):
    """A run of 20 rounds; after the horizon beta stays where it is in its last round, at 1."""
    job = task(local_data(TWO_CLASSES), anchors(0.8), t, 20)
    found = begun(FedADBParams(beta_rounds=horizon), job).beta
    assert found == pytest.approx(r ** (0.5 * 0.8), rel=1e-12)


def test_without_anchors_beta_is_one():
    job = task(local_data(TWO_CLASSES), server_round=1, num_rounds=1000)
    assert begun(FedADBParams(use_anchors=False), job).beta == 1


@pytest.mark.parametrize(("text", "number"), [("0.5", 0.5), ("0", 0.0), ("1", 1.0), ("2e-1", 0.2)])
def test_a_fixed_beta_is_used_whatever_the_round(text, number):
    for t in (1, 10):
        job = task(local_data(TWO_CLASSES), anchors(), t)
        assert begun(FedADBParams(beta=text), job).beta == number


def test_beta_weighs_the_lcb_in_the_loss():
    """L(beta) is a straight line through L_AGB."""
    losses = []
    for beta in ("0", "0.5", "2"):
        trainer = begun(FedADBParams(beta=beta), task(local_data(TWO_CLASSES), anchors()))
        batch = next(trainer.task.data.epoch(19, torch.Generator().manual_seed(0)))
        losses.append(trainer.loss(batch).item())
    assert losses[1] - losses[0] > 0.1
    assert losses[2] - losses[0] == pytest.approx(4 * (losses[1] - losses[0]), abs=1e-5)


@pytest.mark.parametrize(
    ("key", "value"), [("beta-rounds", -1), ("beta-rounds", 1.5), ("weights", "size")]
)
def test_wrong_values_of_the_horizon_and_the_weights(key, value):
    with pytest.raises(ConfigError, match=f"fedadb.{key}="):
        read_run_config({f"fedadb.{key}": value})


# --- parameters -----------------------------------------------------------------------------


@pytest.mark.parametrize("beta", ["abc", "-1", "nan", "inf", "-inf", "", "Dynamic"])
def test_no_other_text_is_a_beta(beta):
    with pytest.raises(ConfigError, match=f'fedadb.*beta="{beta}" is not allowed'):
        read_run_config({"fedadb.beta": beta})


def test_natural_batches_with_anchors_are_refused():
    with pytest.raises(ConfigError, match=r'sampling="natural".*use-anchors=false'):
        read_run_config({"fedadb.sampling": "natural"})
    values = {"fedadb.sampling": "natural", "fedadb.use-anchors": False}
    assert isinstance(read_run_config(values)[2], FedADBParams)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("anchors-per-class", 0),
        ("anchor-steps", -1),
        ("anchor-learning-rate", 0.0),
        ("anchor-l2", -1e-4),
        ("anchor-noise", -1.0),
        ("anchor-label", "firm"),
        ("sampling", "random"),
    ],
)
def test_values_out_of_range_are_refused_by_name(key, value):
    with pytest.raises(ConfigError, match=rf"fedadb\.{key}"):
        read_run_config({f"fedadb.{key}": value})


def test_anchor_settings_are_the_keys_of_their_names():
    params = FedADBParams(
        anchors_per_class=3,
        anchor_steps=7,
        anchor_learning_rate=0.3,
        anchor_l2=0.01,
        anchor_noise=0.5,
    )
    assert params.anchor_settings() == AnchorSettings(
        per_class=3, steps=7, learning_rate=0.3, l2=0.01, noise=0.5
    )
