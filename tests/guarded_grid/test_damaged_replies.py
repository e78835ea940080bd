"""Damage of every kind through Flower's real SuperLink and grid: a reply costs its sender."""

import tracemalloc

import numpy as np
import pytest
from damage import DAMAGES, damaged
from grid_cases import HONEST, MODEL, Asked, pulled_all
from superlink import SuperLink, superlink

from fedadb_app.guarded_grid import Allowance, GuardedGrid

ALLOWANCE = Allowance.of(MODEL, 0)


@pytest.fixture(scope="module")
def crowd(link):
    """A SuperLink with eight hostile nodes beside the honest one."""
    with superlink(num_nodes=9) as crowd:
        yield crowd


def survive(link: SuperLink, seeds: range) -> dict[str, int]:
    """Send one damaged reply per seed, eight in a round; count what became of them."""
    kinds, outcomes = list(DAMAGES), dict.fromkeys(("used", "refused", "no reply"), 0)
    hostile = [k for k in range(len(link.nodes)) if k != HONEST]
    for first in range(seeds.start, seeds.stop, len(hostile)):
        link.beat()
        grid, asked, parcels = GuardedGrid(link.grid, ALLOWANCE), Asked(link), {}
        for k, seed in zip(hostile, range(first, seeds.stop), strict=False):
            rng = np.random.default_rng(seed)
            names = [kinds[seed % len(kinds)], *rng.choice(kinds, rng.integers(0, 3))]
            parcels[k] = damaged(asked.replies[k], names, rng)
        for said in pulled_all(link, grid, asked, parcels).values():
            outcomes[{"": "used", "no reply": "no reply"}.get(said, "refused")] += 1
            assert len(said) <= 2000
            assert said.isprintable()
    return outcomes


def test_no_damage_does_more_than_cost_its_reply(crowd):
    outcomes = survive(crowd, range(24))
    assert outcomes["refused"] >= 12


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1000, 3000, 250))
def test_two_thousand_damaged_replies_cost_their_replies(crowd, first):
    outcomes = survive(crowd, range(first, first + 250))
    assert sum(outcomes.values()) == 250
    assert outcomes["refused"] >= 150


@pytest.mark.slow
def test_memory_stays_within_three_times_what_a_reply_may_have(crowd):
    """And 32 MB for Python's objects; SuperLink, nodes and server are all in this process."""
    tracemalloc.start()
    survive(crowd, range(3000, 3120))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * ALLOWANCE.num_bytes + (32 << 20)
