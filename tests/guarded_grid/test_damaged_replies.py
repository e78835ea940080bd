"""Damage of every kind through Flower's real SuperLink and grid: a reply costs its sender."""

import tracemalloc

import numpy as np
import pytest
from damage import DAMAGES, damaged
from grid_cases import HOSTILE, Asked, pulled
from superlink import SuperLink

from fedadb_app.guarded_grid import GuardedGrid


def survive(link: SuperLink, grid: GuardedGrid, seeds: range) -> dict[str, int]:
    """Send one damaged reply per seed beside an honest one; count what became of them."""
    kinds, outcomes = list(DAMAGES), dict.fromkeys(("used", "refused", "no reply"), 0)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        names = [kinds[seed % len(kinds)], *rng.choice(kinds, rng.integers(0, 3))]
        link.beat()
        asked = Asked(link)
        said = pulled(link, grid, asked, damaged(asked.replies[HOSTILE], names, rng))
        outcomes[{"": "used", "no reply": "no reply"}.get(said, "refused")] += 1
        assert len(said) <= 2000
        assert said.isprintable()
    return outcomes


def test_no_damage_does_more_than_cost_its_reply(link, grid):
    outcomes = survive(link, grid, range(8))
    assert outcomes["refused"] >= 4


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(1000, 3000, 250))
def test_two_thousand_damaged_replies_cost_their_replies(link, grid, first):
    outcomes = survive(link, grid, range(first, first + 250))
    assert outcomes["refused"] >= 150


@pytest.mark.slow
def test_memory_stays_within_three_times_what_a_reply_may_have(link, grid):
    """And 32 MB for Python's objects; SuperLink, nodes and server are all in this process."""
    tracemalloc.start()
    survive(link, grid, range(3000, 3120))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * grid._allowance.num_bytes + (32 << 20)
