"""Gamma and beta by hand, the balanced sampler, and the pool it draws from."""

import pytest
import torch
from dual_branch_cases import (
    CLASSES,
    LABELS,
    class_anchors,
    generator,
    local_data,
    pixels,
    within_4_sigma,
)
from hypothesis import given
from hypothesis import strategies as st

from fedadb_app.dual_branch import (
    BalancedSampler,
    MixedPool,
    dynamic_beta,
    missing_class_rate,
)

# --- gamma and beta -------------------------------------------------------------------------


def test_missing_class_rate_by_hand():
    assert missing_class_rate(torch.tensor([3, 0, 1, 0])) == 0.5
    assert missing_class_rate(torch.tensor([1, 1, 1])) == 0
    assert missing_class_rate(torch.tensor([0] * 9 + [70])) == pytest.approx(0.9)
    assert missing_class_rate(local_data().class_counts) == pytest.approx(2 / 5)


@pytest.mark.parametrize(
    ("t", "total", "gamma", "tau", "expected"),
    [
        (5, 20, 0.5, 0.8, 2**-0.8),
        (1, 100, 0.9, 0.9, 10**-1.62),
        (10, 40, 0.5, 1.0, 0.5),
        (1, 16, 0.75, 1.0, 0.125),
        (1, 1, 0.9, 0.7, 1.0),
    ],
)
def test_beta_by_hand(t, total, gamma, tau, expected):
    assert dynamic_beta(t, total, gamma, tau) == pytest.approx(expected, rel=1e-12)


rounds = st.integers(1, 1000).flatmap(
    lambda total: st.tuples(st.integers(1, total), st.just(total))
)
unit = st.floats(0, 1)


@given(rounds, unit, unit)
def test_beta_lies_between_nothing_and_one(t_and_total, gamma, tau):
    assert 0 < dynamic_beta(*t_and_total, gamma, tau) <= 1


@given(rounds, unit)
def test_a_client_with_every_class_or_the_last_round_has_beta_one(t_and_total, x):
    _, total = t_and_total
    assert dynamic_beta(*t_and_total, 0.0, x) == 1
    assert dynamic_beta(*t_and_total, x, 0.0) == 1
    assert dynamic_beta(total, total, x, x) == 1


@given(rounds, unit, unit, unit)
def test_beta_does_not_grow_with_gamma_or_tau_nor_shrink_with_rounds(t_and_total, low, high, x):
    low, high = sorted((low, high))
    t, total = t_and_total
    assert dynamic_beta(t, total, high, x) <= dynamic_beta(t, total, low, x)
    assert dynamic_beta(t, total, x, high) <= dynamic_beta(t, total, x, low)
    assert dynamic_beta(t, total, low, x) <= dynamic_beta(min(t + 1, total), total, low, x)


# --- the balanced sampler ---------------------------------------------------------------------


def test_with_anchors_every_class_is_drawn_alike_and_every_element_within_it():
    local = [0] * 40 + [3] * 2 + [1] * 5
    order = torch.randperm(47, generator=generator(1))
    labels = torch.cat([torch.tensor(local)[order], torch.arange(CLASSES)])
    draws = 50_000
    drawn = BalancedSampler(labels, generator()).draw(draws)

    counts = torch.bincount(drawn, minlength=len(labels))
    assert len(counts) == len(labels)
    sizes = torch.bincount(labels)
    for c in range(CLASSES):
        assert within_4_sigma(int(counts[labels == c].sum()), draws, 1 / CLASSES)
    for i, c in enumerate(labels.tolist()):
        # e.g. the anchor of a class with n local samples gets 1/(n+1) of the class's draws
        assert within_4_sigma(int(counts[i]), draws, 1 / CLASSES / int(sizes[c]))


def test_without_anchors_only_present_classes_are_drawn_alike():
    labels = torch.tensor(LABELS)
    draws = 30_000
    drawn = BalancedSampler(labels, generator()).draw(draws)
    counts = torch.bincount(labels[drawn], minlength=CLASSES).tolist()
    assert counts[2] == counts[4] == 0
    assert all(within_4_sigma(counts[c], draws, 1 / 3) for c in (0, 1, 3))


def test_a_single_sample_is_drawn_every_time():
    assert BalancedSampler(torch.tensor([4]), generator()).draw(9).tolist() == [0] * 9


def test_draws_go_on_and_repeat_with_the_generator():
    labels = torch.tensor(LABELS)
    sampler, twin = (BalancedSampler(labels, generator(8)) for _ in range(2))
    first, second = sampler.draw(64), sampler.draw(64)
    assert not torch.equal(first, second)
    assert torch.equal(twin.draw(64), first)
    assert torch.equal(twin.draw(64), second)


# --- the pool ---------------------------------------------------------------------------------


def test_the_pool_is_the_clients_samples_then_the_anchors():
    pool = MixedPool.of(local_data(), class_anchors(), "hard")
    assert pool.labels.tolist() == [*LABELS, 0, 1, 2, 3, 4]
    positions = torch.tensor([12, 0, 9, 10, 14, 12, 5])
    expected = torch.stack([pixels(pool, int(i)) for i in positions])
    torch.testing.assert_close(pool.load(positions, generator()), expected, atol=1e-6, rtol=0)


def test_without_anchors_the_pool_is_the_clients_samples():
    pool = MixedPool.of(local_data(), None, "soft")
    assert pool.labels.tolist() == LABELS
    assert pool.targets.tolist() == LABELS
    assert pool.weights.tolist() == [1.0] * len(LABELS)
    positions = torch.tensor([3, 3, 9])
    expected = torch.stack([pixels(pool, int(i)) for i in positions])
    torch.testing.assert_close(pool.load(positions, generator()), expected, atol=1e-6, rtol=0)


def test_local_samples_are_flipped_and_anchors_never():
    pool = MixedPool.of(local_data(flip=True), class_anchors(), "hard")
    found = pool.load(torch.tensor([2, 11] * 32), generator())
    local, anchors = found[0::2], found[1::2]
    plain = pixels(pool, 2)
    as_is = torch.tensor([torch.allclose(x, plain, atol=1e-6) for x in local])
    mirrored = torch.tensor([torch.allclose(x, plain.flip(-1), atol=1e-6) for x in local])

    assert (anchors == pool.anchor_images[1]).all()
    assert (as_is ^ mirrored).all()
    assert within_4_sigma(int(mirrored.sum()), 32, 0.5)
