"""In which order, and in which portions, a simulation gets a round's messages."""

import itertools

import pytest
from fake_grid import FakeGrid, SimulatedGrid
from hypothesis import given
from hypothesis import strategies as st

from fedadb_app import messages
from strategies import dispatch
from strategies.dispatch import largest_first


@pytest.fixture
def pauses(monkeypatch):
    """How many messages had been yielded at each pause."""
    monkeypatch.setattr(dispatch.os, "cpu_count", lambda: 2)
    yielded: list[int] = []
    at: list[int] = []
    monkeypatch.setattr(dispatch.time, "sleep", lambda _: at.append(len(yielded)))
    return yielded, at


def handed_out(grid, samples):
    sent = [messages.identity_query(node + 1) for node in range(len(samples))]
    return [m.metadata.dst_node_id - 1 for m in largest_first(grid, sent, samples)]


def test_a_message_for_each_cpu_then_one_two_four(pauses):
    yielded, at = pauses
    sent = [messages.identity_query(node + 1) for node in range(12)]
    for message in largest_first(SimulatedGrid({}, {}), sent, range(12)):
        yielded.append(message.metadata.dst_node_id - 1)
    assert yielded == list(range(12))[::-1]
    assert at == [2, 3, 5, 9]


def test_real_supernodes_get_theirs_at_once_and_in_the_given_order(pauses):
    assert handed_out(FakeGrid({}, {}), [3, 9, 1, 7, 5]) == [0, 1, 2, 3, 4]
    assert pauses[1] == []


@given(samples=st.lists(st.integers(1, 50), max_size=30))
def test_every_message_once_and_never_a_larger_client_later(samples):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch.time, "sleep", lambda _: None)
        order = handed_out(SimulatedGrid({}, {}), samples)
    assert sorted(order) == list(range(len(samples)))
    assert all(samples[a] >= samples[b] for a, b in itertools.pairwise(order))


def test_replies_are_looked_for_often_but_not_without_pause(pauses):
    for count, interval in ((1, 0.002), (5, 0.01), (1000, 0.1)):
        grid = SimulatedGrid({}, {})
        handed_out(grid, [1] * count)
        assert grid.pull_interval == pytest.approx(interval)
