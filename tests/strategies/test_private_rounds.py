"""Differential privacy, round by round: failures, what it costs, how noise repeats, refusals."""

import math

import numpy as np
import pytest
import torch
from faults import edited, fails, first, garbage, silent
from helpers import identical, messages_of, read_csv
from privacy_cases import CENTRAL, LOCAL, both_modes, copied, local_reply, state

from fedadb_app.errors import ConfigError, TrainingError
from fedadb_app.privacy import gaussian_epsilon
from fedadb_app.randomness import secret_generator
from strategies.registry import read_run_config

# --- the failure policy ---------------------------------------------------------------------


def test_unusable_replies_are_refused_as_without_privacy(federation, caplog):
    built = federation(6, **CENTRAL)
    faults = {
        0: edited(first(lambda a: np.full_like(a, np.nan))),
        1: edited(first(lambda a: a[:-1])),
        2: edited(content=garbage),
        3: silent,
    }
    built.strategy.run.config = built.strategy.run.config.model_copy(
        update={"min_success_fraction": 0.3}
    )
    for client, fault in faults.items():
        built.fault(client, fault)
    built.run()
    assert [(row["clients"], row["failures"]) for row in built.rows] == [("2", "4")] * 2
    warned = " ".join(messages_of(caplog.records, "WARNING"))
    assert all(f"client {client} failed" in warned for client in faults)


def test_too_few_usable_updates_end_the_run_without_a_release(federation):
    built = federation(4, **CENTRAL)
    for client in (0, 1, 2):
        built.fault(client, fails())
    before = copied(built.strategy.global_model)
    with pytest.raises(TrainingError, match="1 of 4 clients"):
        built.run()
    assert identical(built.strategy.global_model, before)


# --- what it costs, round by round ----------------------------------------------------------


@both_modes
def test_epsilon_counts_the_rounds_of_the_client_drawn_most_often(federation, privacy):
    values = {"noise-multiplier": 3.0, "delta": 1e-4, "fraction-train": 0.4}
    built = federation(5, **{**values, "privacy": privacy, "num-server-rounds": 6})
    built.run()
    reach = {"central": 1, "local": 2}[privacy]
    drawn: dict[int, int] = {}
    for t, row in enumerate(built.rows, start=1):
        for message in built.grid.trained():
            if message.content["config"]["round"] == t:
                node = message.metadata.dst_node_id
                drawn[node] = drawn.get(node, 0) + 1
        most = max(drawn.values())
        assert float(row["epsilon"]) == pytest.approx(
            gaussian_epsilon(reach * math.sqrt(most) / 3.0, 1e-4), rel=1e-5
        )
    spent = [float(row["epsilon"]) for row in built.rows]
    assert spent == sorted(spent)
    assert 1 < max(drawn.values()) < 6, "not everyone is drawn in each round"


def test_without_privacy_epsilon_is_empty_and_its_keys_change_no_byte(federation):
    plain = federation()
    other = federation(
        **{"clipping-norm": 0.1, "noise-multiplier": 9.0, "delta": 0.5, "run-name": "other"}
    )
    plain.run()
    other.run()
    assert [row["epsilon"] for row in plain.rows + other.rows] == [""] * 4
    assert identical(plain.strategy.global_model, other.strategy.global_model)
    names = [r["name"] for r in read_csv(plain.folder.path / "diagnostics.csv")]
    assert "train_loss" in names


# --- repeatability --------------------------------------------------------------------------


@both_modes
def test_two_runs_of_one_seed_differ_by_their_noise_alone(federation, repeatable, privacy):
    values = {**CENTRAL, "privacy": privacy}
    runs = [federation(**values, **{"run-name": str(i)}) for i in range(4)]
    runs[0].run()
    runs[1].run()
    assert not identical(runs[0].strategy.global_model, runs[1].strategy.global_model)
    for built in runs[2:]:
        repeatable()
        built.run()
    assert identical(runs[2].strategy.global_model, runs[3].strategy.global_model)


def test_the_noise_does_not_follow_from_any_seed(monkeypatch):
    """Every node knows the run's seed, and could subtract noise that is drawn from it."""
    draws = set()
    for _ in range(20):
        np.random.seed(0)
        torch.manual_seed(0)
        draws.add(secret_generator().normal())
    assert len(draws) == 20


def test_a_clients_noise_does_not_follow_from_numpys_global_seed(federation):
    """From which Flower's mod draws, and which any library may set."""
    built = federation(**LOCAL, **{"num-server-rounds": 1})
    built.run()
    sent = []
    for _ in range(2):
        np.random.seed(0)
        sent.append(state(local_reply(built, 0)))
    assert not identical(*sent)


# --- what is refused ------------------------------------------------------------------------


@both_modes
@pytest.mark.parametrize(
    ("strategy", "model"), [("fedavg", "resnet18"), ("fedadb", "resnet18"), ("fedgela", "lenet")]
)
def test_running_statistics_are_refused(federation, privacy, strategy, model):
    values = {"privacy": privacy, "strategy": strategy, "model": model}
    with pytest.raises(ConfigError, match=rf'privacy="{privacy}" .*running.*norm="batch-local"'):
        federation(**values)
    federation(**values, norm="batch-local", **{"run-name": "accepted"})


@pytest.mark.parametrize(
    ("key", "wrong", "allowed"),
    [
        ("privacy", "global", 'one of "none", "central", "local"'),
        ("clipping-norm", 0.0, "greater than 0"),
        ("noise-multiplier", 0.0, "at least 0.001"),
        ("delta", 0.0, "greater than 0"),
        ("delta", 1.0, "less than 1"),
    ],
)
def test_values_out_of_range(key, wrong, allowed):
    with pytest.raises(ConfigError, match=f"^{key}=.*{allowed}"):
        read_run_config({key: wrong})
