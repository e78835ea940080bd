"""The skews that studies use: few classes each, other sizes, sites; and their measure."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitions import balanced, make_partition, table_of

from fedadb_app.data.partition import Partition, Samples, Skew
from fedadb_app.data.registry import PARTITIONS
from fedadb_app.errors import ConfigError, DataError
from fedadb_app.randomness import numpy_generator

# --- classes ----------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(1, 12), st.integers(2, 8), st.data(), st.integers(0, 2**32))
def test_each_client_holds_so_many_classes_and_shares_them_evenly(clients, classes, data, seed):
    each = data.draw(st.integers(1, classes))
    labels = np.random.default_rng(seed).permutation(balanced(classes, 12 * clients))
    found = make_partition(labels, clients, "classes", seed, classes_per_client=each)
    table = table_of(found, labels)
    assert ((table > 0).sum(axis=0) == each).all()
    holders = (table > 0).sum(axis=1)
    assert holders.max() - holders.min() <= 1  # each class has as many holders as any other
    for per_client in table[holders > 0]:  # who hold a class share all of it evenly
        shares = per_client[per_client > 0]
        assert shares.sum() == 12 * clients
        assert shares.max() - shares.min() <= 1
    assert (holders == 0).sum() == max(0, classes - clients * each)


def test_with_all_classes_it_is_even():
    table = table_of(
        make_partition(balanced(4, 40), 5, "classes", classes_per_client=4), balanced(4, 40)
    )
    assert (table == 8).all()


@pytest.mark.parametrize(
    ("clients", "each", "words"),
    [(3, 9, "classes-per-client=9, but the data set has 4 classes"), (40, 1, "4 samples, of 10")],
)
def test_classes_that_cannot_be_dealt(clients, each, words):
    with pytest.raises(DataError, match=words):
        make_partition(balanced(4, 40), clients, "classes", classes_per_client=each)


# --- quantity ---------------------------------------------------------------------------------


def test_sizes_differ_and_the_mix_does_not():
    labels = np.random.default_rng(0).permutation(balanced(4, 2500))
    found = make_partition(labels, 10, "quantity", seed=1, alpha=0.3)
    sizes = np.array([len(part) for part in found.indices])
    assert sizes.max() > 5 * np.median(sizes)
    large = [part for part in found.indices if len(part) > 400]
    for part in large:  # within five standard deviations of a quarter each
        shares = np.bincount(labels[part], minlength=4) / len(part)
        assert (np.abs(shares - 0.25) < 5 * np.sqrt(0.1875 / len(part))).all()


def test_what_the_repair_moved_is_told():
    found = make_partition(balanced(2, 100), 15, "quantity", alpha=0.01)
    assert found.moved > 0
    assert min(map(len, found.indices)) == 10


def spread(alpha: float, seed: int) -> float:
    found = make_partition(balanced(2, 2000), 8, "quantity", seed, alpha=alpha)
    return float(np.std([len(part) for part in found.indices]))


def test_the_larger_alpha_the_more_alike_the_sizes():
    mean = [np.mean([spread(alpha, seed) for seed in range(10)]) for alpha in (0.1, 1.0, 100.0)]
    assert mean[0] > mean[1] > mean[2]


# --- natural ----------------------------------------------------------------------------------


def dealt(sites: list[int], clients: int, seed: int = 0) -> Partition:
    domains = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sites)), sites))
    samples = Samples("x", np.zeros(len(domains), np.int64), domains)
    found = PARTITIONS["natural"].deal(samples, clients, numpy_generator(seed, "partition"))
    assert all(len(set(domains[part])) == 1 for part in found.indices)  # of one site each
    assert sorted(np.concatenate(found.indices).tolist()) == list(range(len(domains)))
    return found


def test_each_site_is_a_client():
    assert [len(part) for part in dealt([40, 11, 300], 3).indices] == [40, 11, 300]


@settings(max_examples=30)
@given(st.lists(st.integers(60, 99), min_size=2, max_size=5), st.integers(0, 6), st.integers(0, 99))
def test_more_clients_than_sites_share_them(sites, more, seed):
    found = dealt(sites, len(sites) + more, seed)
    assert len(found.indices) == len(sites) + more
    assert (found.draws, found.moved) == (1, 0)


def test_sites_that_are_no_clients():
    with pytest.raises(DataError, match="a client for each of the 3 domains; there are 2"):
        dealt([40, 40, 40], 2)
    with pytest.raises(DataError, match="domain 2 has 9 training samples for 1 clients, of 10"):
        dealt([40, 9], 2)
    samples = Samples("digits", balanced(2, 40))
    with pytest.raises(ConfigError, match=r'column site in labels\.csv; dataset="digits" has none'):
        PARTITIONS["natural"].deal(samples, 2, numpy_generator(0, "partition"))


# --- how skewed -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "distances", "missing"),
    [
        ([[5, 5], [7, 7]], [0, 0], 0),
        ([[5, 0], [0, 5]], [0.5579, 0.5579], 0.5),  # the square root of 0.3113
        ([[5, 0, 5], [0, 0, 5], [5, 0, 0]], [0, 0.5579, 0.5579], 1 / 3),  # nobody holds class 1
    ],
)
def test_skew(counts, distances, missing):
    found = Skew.of(np.array(counts))
    assert found.distances == pytest.approx(distances, abs=1e-4)
    assert found.missing_class_rate == pytest.approx(missing)


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), min_size=1, max_size=6))
def test_skew_is_between_its_bounds_and_forgets_order_and_scale(rows):
    counts = np.array(rows) + np.eye(3, dtype=np.int64)[[i % 3 for i in range(len(rows))]]
    found = Skew.of(counts)
    assert (found.distances >= 0).all()
    assert (found.distances <= 1).all()
    assert 0 <= found.missing_class_rate < 1
    turned = Skew.of(counts[::-1, ::-1])
    assert turned.distances[::-1] == pytest.approx(found.distances, abs=1e-6)
    assert Skew.of(3 * counts).distances == pytest.approx(found.distances, abs=1e-6)
