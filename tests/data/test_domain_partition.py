"""Some classes of one domain to each client."""

import numpy as np
import pytest

from fedadb_app.data.partition import Samples
from fedadb_app.data.rules import domain
from fedadb_app.errors import DataError
from fedadb_app.randomness import numpy_generator


def domain_partition(labels, domains, clients, classes_each, seed=0):
    rng = numpy_generator(seed, "partition")
    return domain.deal(Samples("x", labels, domains), clients, rng, classes_each)


def domain_data(num_domains=4, num_classes=7, per_class=40):
    """Labels and domains, shuffled, of as many samples in each class of each domain."""
    grid = np.stack(np.meshgrid(np.arange(num_domains), np.arange(num_classes)), -1).reshape(-1, 2)
    rows = np.random.default_rng(0).permutation(np.repeat(grid, per_class, axis=0))
    return rows[:, 1].astype(np.int64), rows[:, 0].astype(np.int64)


@pytest.mark.parametrize(
    ("clients", "classes_each"), [(20, 2), (20, 7), (4, 3), (7, 1), (10, 5), (30, 2)]
)
def test_a_client_holds_so_many_classes_of_one_domain(clients, classes_each):
    labels, domains = domain_data()
    parts = domain_partition(labels, domains, clients, classes_each, seed=3).indices
    assert len(parts) == clients
    of = [set(domains[part]) for part in parts]
    assert all(len(one) == 1 for one in of)
    assert [min(one) for one in of] == sorted(min(one) for one in of)
    assert set().union(*of) == {0, 1, 2, 3}
    assert all(len(set(labels[part])) == classes_each for part in parts)
    everyone = np.concatenate(parts)
    assert len(set(everyone.tolist())) == len(everyone)
    # All samples of a domain's class that somebody was dealt are used, evenly shared.
    for place in range(4):
        for label in range(7):
            there = (domains == place) & (labels == label)
            shares = [there[part].sum() for part in parts]
            shares = [share for share in shares if share]
            assert sum(shares) in (0, 40)
            assert not shares or max(shares) - min(shares) <= 1


def test_twenty_clients_of_two_classes_leave_no_sample_of_pacs_out():
    labels, domains = domain_data()
    parts = domain_partition(labels, domains, 20, 2, seed=0).indices
    assert sum(map(len, parts)) == len(labels)


def test_few_clients_together_know_all_classes():
    labels, domains = domain_data()
    parts = domain_partition(labels, domains, 4, 2, seed=0).indices
    assert set(labels[np.concatenate(parts)]) == set(range(7))


def test_a_domain_partition_follows_from_its_seed():
    labels, domains = domain_data()
    hashes = [domain_partition(labels, domains, 8, 2, seed).hash for seed in (0, 0, 1)]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(
    ("clients", "classes_each", "words"),
    [
        (3, 2, "client for each of the 4 domains; there are 3"),
        (8, 8, "classes-per-client=8, but the data set has 7 classes"),
        (140, 1, "8 samples, of 10 needed"),
    ],
)
def test_a_domain_partition_that_cannot_be(clients, classes_each, words):
    labels, domains = domain_data()
    with pytest.raises(DataError, match=words):
        domain_partition(labels, domains, clients, classes_each, seed=0)
