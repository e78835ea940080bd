"""Robust means in whole federations: hostile clients with and without, and what is refused."""

import numpy as np
import pytest
import torch
from faults import edited
from helpers import messages_of
from privacy_cases import SINGLE
from run_configurations import refusal

from fedadb_app import messages
from strategies.registry import METHODS, read_run_config

RULES = ("clip-median", "trimmed-mean", "median")
LEARNING = {
    "num-server-rounds": 4,
    "local-epochs": 4,
    "batch-size": 10,
    "learning-rate": 0.02,
    "evaluate-every": 4,
    "classes": "0,1,2,3",
    "image-shape": "1x28x28",
}
FLIPPER, SCALER = 203, 204


@pytest.fixture
def nodes(tmp_path, quadrants):
    """Four honest hospitals of 30 images each, and one of 240 whose labels c are called 3 - c."""
    with np.load(quadrants) as data:
        images, labels = data["train_images"], data["train_labels"]
    parts = {200 + k: slice(30 * k, 30 * k + 30) for k in range(3)}
    parts |= {SCALER: slice(90, 120), FLIPPER: slice(120, 360)}
    for node, rows in parts.items():
        called = 3 - labels[rows] if node == FLIPPER else labels[rows]
        np.savez(tmp_path / f"{node}.npz", train_images=images[rows], train_labels=called)
    return {node: {"data-path": str(tmp_path / f"{node}.npz")} for node in parts}


def scaled(asked, reply):
    """The movement times -5, well within max-relative-update."""
    sent = messages.to_state_dict(asked.content["arrays"])

    def turn(arrays):
        return {n: sent[n].numpy() - 5 * (a - sent[n].numpy()) for n, a in arrays.items()}

    return edited(turn)(asked, reply)


def accuracy(built) -> float:
    built.run()
    assert {row["failures"] for row in built.rows} == {"0"}
    return float(built.rows[-1]["accuracy"])


@pytest.mark.slow
def test_without_a_rule_each_of_them_ruins_the_model(federation, nodes):
    flipping = {node: nodes[node] for node in nodes if node != SCALER}
    assert accuracy(federation(nodes=flipping, **LEARNING, **{"run-name": "flipping"})) < 70
    scaling = {node: nodes[node] for node in nodes if node != FLIPPER}
    built = federation(nodes=scaling, **LEARNING, **{"run-name": "scaling"})
    built.grid.faults[SCALER] = scaled
    assert accuracy(built) < 70
    del built.grid.faults[SCALER]
    honest = federation(nodes=scaling, **LEARNING, **{"run-name": "honest"})
    assert accuracy(honest) > 85, "without an attack it learns"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.slow
def test_with_a_rule_both_together_do_little_harm(federation, nodes, rule):
    """Two of five, and seven tenths of all samples: clients count equally."""
    built = federation(nodes=nodes, **LEARNING, robust=rule, **{"trim-share": 0.4})
    built.grid.faults[SCALER] = scaled
    assert accuracy(built) > 85


@pytest.mark.parametrize("rule", RULES)
def test_of_two_updates_it_is_the_mean_and_says_so(federation, rule, caplog):
    """By hand: movements of -1 and 3 have the mean 1; clipped, of -1 and 2, it is 0.5."""
    built = federation(2, robust=rule, **{"num-server-rounds": 1})
    sent = {name: tensor.clone() for name, tensor in built.strategy.global_model.items()}
    for client, move in enumerate((-1.0, 3.0)):
        moved = {name: tensor.numpy() + move for name, tensor in sent.items()}
        built.fault(client, edited(lambda arrays, moved=moved: moved))
    built.run()
    expected = 0.5 if rule == "clip-median" else 1.0
    for name, tensor in built.strategy.global_model.items():
        torch.testing.assert_close(tensor, sent[name] + expected)
    (said,) = [s for s in messages_of(caplog.records, "WARNING") if "robust" in s]
    assert said.startswith(f'round 1: robust="{rule}" protects against nobody: of 2 usable updates')


# --- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("strategy", METHODS)
def test_refused_where_the_server_needs_each_update(strategy, rule):
    values = {"strategy": strategy, "robust": rule}
    if strategy in SINGLE:  # sums of drifts, norms of single updates, numbers of steps
        text = refusal(values)
        assert text.startswith(f'robust="{rule}" is not possible with strategy="{strategy}"')
    else:
        assert read_run_config(values)[0].robust == rule


def test_refused_where_the_noised_mean_is_all_there_is():
    values = {"strategy": "fedavg", "robust": "median", "privacy": "central"}
    assert refusal(values).startswith('robust="median" is not possible with privacy="central"')
    read_run_config({**values, "privacy": "local"})


@pytest.mark.parametrize(
    ("key", "value"), [("robust", "krum"), ("trim-share", 0.5), ("trim-share", -0.1)]
)
def test_values_out_of_range_are_named(key, value):
    assert f"{key}=" in refusal({key: value})
