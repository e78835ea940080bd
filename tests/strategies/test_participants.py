"""Who takes part in a round: a draw of seed, round and identities alone."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.participants import draw_participants
from strategies.registry import METHODS

# --- who takes part -------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**63 - 1),
    server_round=st.integers(1, 10**4),
    clients=st.sets(st.integers(0, 2**64 - 1), min_size=1, max_size=40),
    fraction=st.floats(1e-6, 1.0),
    shuffled=st.randoms(use_true_random=False),
)
@settings(max_examples=60)
def test_a_draw_depends_on_seed_round_and_identities_only(
    seed, server_round, clients, fraction, shuffled
):
    order = sorted(clients)
    drawn = draw_participants(seed, server_round, order, fraction)
    assert drawn == sorted(set(drawn))
    assert set(drawn) <= clients
    assert 1 <= len(drawn) <= len(clients)
    assert abs(len(drawn) - max(1.0, fraction * len(clients))) <= 0.5 + 1e-9
    shuffled.shuffle(order)
    torch.manual_seed(shuffled.getrandbits(32))
    np.random.seed(shuffled.getrandbits(32))
    assert draw_participants(seed, server_round, order, fraction) == drawn
    assert draw_participants(seed, server_round, iter(order), fraction) == drawn


@pytest.mark.parametrize(
    ("clients", "fraction", "size"),
    [
        (100, 0.05, 5),
        (100, 0.29, 29),
        (100, 0.57, 57),
        (100, 0.58, 58),
        (100, 1.0, 100),
        (10, 0.01, 1),
        (1, 0.5, 1),
        (3, 0.5, 2),
        (2, 1.0, 2),
        (1000, 0.001, 1),
        (7, 0.9, 6),
    ],
)
def test_size_of_a_draw(clients, fraction, size):
    assert len(draw_participants(0, 1, range(clients), fraction)) == size


def test_draws_differ_between_rounds_and_seeds():
    draws = {
        tuple(draw_participants(seed, server_round, range(100), 0.05))
        for seed, server_round in itertools.product(range(5), range(1, 11))
    }
    assert len(draws) == 50


def test_everyone_is_drawn_as_often():
    """200 draws of 5 of 20: each client 50 times, give or take five standard deviations."""
    draws = [draw_participants(3, t, range(20), 0.25) for t in range(1, 201)]
    counts = np.bincount(np.concatenate(draws), minlength=20)
    assert np.abs(counts - 50).max() < 5 * math.sqrt(200 * 0.25 * 0.75)


def participants(built) -> list[list[int]]:
    """Per round, the partitions that were sent a train message."""
    partition = {node: config["partition-id"] for node, config in built.grid.nodes.items()}
    rounds: dict[int, list[int]] = {}
    for message in built.grid.trained():
        rounds.setdefault(message.content["config"]["round"], []).append(
            partition[message.metadata.dst_node_id]
        )
    return [sorted(clients) for _, clients in sorted(rounds.items())]


@pytest.mark.slow
def test_all_methods_of_a_seed_train_the_same_clients(federation):
    built = [
        federation(8, **{"strategy": name, "fraction-train": 0.25, "run-name": name})
        for name in METHODS
    ]
    for each in built:
        each.run()
    schedules = [participants(each) for each in built]
    assert all(schedule == schedules[0] for schedule in schedules)
    assert [len(clients) for clients in schedules[0]] == [2, 2]
    config = built[0].strategy.run.config
    assert schedules[0] == [draw_participants(config.seed, t, range(8), 0.25) for t in (1, 2)]
