"""Who holds what: the lineage's Dirichlet rule, its cap and its repair, and i.i.d. parts."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedadb_app.data.partition import (
    MAX_DRAWS,
    MIN_SAMPLES,
    Partition,
    domain_partition,
    make_partition,
)
from fedadb_app.errors import DataError
from fedadb_app.randomness import numpy_generator


def balanced(num_classes, per_class):
    return np.repeat(np.arange(num_classes), per_class)


CIFAR10 = balanced(10, 5000)


def table_of(partition, labels):
    """Samples of each class at each client, (classes, clients), from the assignment itself."""
    num_classes = labels.max() + 1
    return np.stack([np.bincount(labels[p], minlength=num_classes) for p in partition.indices], 1)


def assert_is_a_partition(partition, labels, num_clients, min_samples=MIN_SAMPLES):
    assert len(partition.indices) == num_clients
    everything = np.concatenate(partition.indices)
    assert everything.dtype == np.int64
    assert np.array_equal(np.sort(everything), np.arange(len(labels)))  # disjoint and complete
    assert min(map(len, partition.indices)) >= min_samples


def same(one, two):
    return len(one.indices) == len(two.indices) and all(
        map(np.array_equal, one.indices, two.indices)
    )


# --- the rule, written a second time as loops, from BASELINES.md 11.3 -------------------------


def draw_by_loops(rng, sizes, num_clients, alpha):
    """Return one draw of step 2 as rows of counts, a row a class."""
    total = sum(sizes)
    held = [0] * num_clients
    rows = []
    for size in sizes:
        share = [float(x) for x in rng.dirichlet([alpha] * num_clients)]
        for k in range(num_clients):
            if held[k] >= total / num_clients:
                share[k] = 0.0
        mass = float(np.sum(share))
        if mass == 0.0:  # nothing to renormalise: equal shares for those who may receive
            share = [float(held[k] < total / num_clients) for k in range(num_clients)]
            mass = float(np.sum(share))
        row, cumulated, previous = [], 0.0, 0
        for k in range(num_clients):
            cumulated += share[k] / mass
            cut = math.floor(cumulated * size)
            row.append(cut - previous)
            previous = cut
        last_receiver = max(k for k in range(num_clients) if share[k] > 0)
        row[last_receiver] += size - previous  # what rounding left over
        for k in range(num_clients):
            held[k] += row[k]
        rows.append(row)
    return rows


def draws_by_loops(seed, sizes, num_clients, alpha):
    """Return step 1: the first draw with enough for everyone (or the best), and its number."""
    rng = numpy_generator(seed, "partition")
    best, number = None, 0
    for _ in range(MAX_DRAWS):
        number += 1
        rows = draw_by_loops(rng, sizes, num_clients, alpha)
        totals = [sum(row[k] for row in rows) for k in range(num_clients)]
        missing = sum(MIN_SAMPLES - t for t in totals if t < MIN_SAMPLES)
        if best is None or missing < best[0]:
            best = (missing, rows, totals)
        if missing == 0:
            break
    return *best, number


@pytest.mark.parametrize(
    ("labels", "num_clients", "alpha"),
    [
        (CIFAR10, 100, 0.1),
        (CIFAR10, 100, 0.5),
        (CIFAR10, 20, 0.05),
        (np.repeat(np.arange(9), [900, 33, 1, 400, 1200, 77, 7, 620, 510]), 12, 0.3),
        (balanced(100, 50), 10, 0.01),
        (balanced(2, 100), 3, 1.0),
        (balanced(25, 4), 3, 1.0),  # N/K is no whole number: who holds 33 of 33.3 may receive
        (balanced(4, 30), 2, 1e-3),
        (balanced(6, 100), 4, 1e-8),
    ],
)
def test_an_accepted_draw_is_the_rule(labels, num_clients, alpha):
    sizes = np.bincount(labels).tolist()
    for seed in range(5):
        missing, rows, _, number = draws_by_loops(seed, sizes, num_clients, alpha)
        partition = make_partition(labels, num_clients, "dirichlet", alpha, seed)
        assert missing == 0  # otherwise this case tests something else
        assert (partition.draws, partition.moved) == (number, 0)
        assert table_of(partition, labels).tolist() == rows


def test_the_order_of_the_samples_is_irrelevant_to_the_counts():
    labels = np.random.default_rng(0).permutation(balanced(5, 80))
    _, rows, _, _ = draws_by_loops(3, [80] * 5, 6, 0.5)
    assert table_of(make_partition(labels, 6, "dirichlet", 0.5, 3), labels).tolist() == rows


@pytest.mark.parametrize(("num_clients", "alpha"), [(20, 0.1), (10, 0.05), (7, 1.0), (3, 1e-3)])
def test_a_client_at_the_cap_gets_nothing_of_later_classes(num_clients, alpha):
    labels, capped = balanced(10, 500), 0
    for seed in range(40):
        partition = make_partition(labels, num_clients, "dirichlet", alpha, seed)
        if partition.moved:
            continue  # a repair may add to any client
        counts = table_of(partition, labels)
        held_before = np.cumsum(counts, axis=0) - counts
        at_cap = held_before >= len(labels) / num_clients
        capped += at_cap.sum()
        assert counts[at_cap].sum() == 0
    assert capped > 50


@pytest.mark.parametrize("seed", range(3))
def test_the_repair_takes_the_best_draw_and_gives_from_the_largest(seed):
    missing, _, totals, number = draws_by_loops(seed, [5000] * 10, 100, 0.05)
    partition = make_partition(CIFAR10, 100, "dirichlet", 0.05, seed)
    assert missing > 0
    assert (partition.draws, partition.moved) == (MAX_DRAWS, missing)
    assert number == MAX_DRAWS
    expected = list(totals)
    for k, total in enumerate(totals):
        for _ in range(MIN_SAMPLES - total):
            expected[expected.index(max(expected))] -= 1
            expected[k] += 1
    # Equally large clients are interchangeable, hence sorted.
    assert sorted(map(len, partition.indices)) == sorted(expected)
    for k, total in enumerate(totals):
        if total < MIN_SAMPLES:
            assert len(partition.indices[k]) == MIN_SAMPLES


@pytest.mark.parametrize("seed", range(5))
def test_cifar10_of_the_paper_ends_with_a_small_repair(seed):
    partition = make_partition(CIFAR10, 100, "dirichlet", 0.05, seed)
    assert_is_a_partition(partition, CIFAR10, 100)
    assert partition.moved < 100  # of 50 000


@pytest.mark.parametrize(
    ("num_clients", "alpha", "missing_rate", "median"),
    [(100, 0.1, 0.56, 420), (100, 0.2, 0.41, 505), (100, 0.5, 0.18, 510), (20, 0.5, 0.14, 2590)],
)
def test_the_skew_is_that_of_the_lineage(num_clients, alpha, missing_rate, median):
    # The table of BASELINES.md 11.3; the medians there are rough (one standard deviation is 10 %).
    rates, medians = [], []
    for seed in range(20):
        counts = table_of(make_partition(CIFAR10, num_clients, "dirichlet", alpha, seed), CIFAR10)
        rates.append((counts == 0).mean())
        medians.append(np.median(counts.sum(axis=0)))
    assert np.mean(rates) == pytest.approx(missing_rate, abs=0.03)
    assert np.mean(medians) == pytest.approx(median, rel=0.15)


def test_a_large_alpha_gives_everyone_nearly_the_same():
    counts = table_of(make_partition(balanced(4, 1000), 5, "dirichlet", 1e5, 0), balanced(4, 1000))
    # The cap leaves the last class to whoever is still below N/K.
    assert counts[:3].min() > 190
    assert counts[:3].max() < 210


def test_the_samples_of_a_class_are_dealt_at_random():
    # Whoever holds part of a class holds a random part of it, not a run of neighbours.
    labels = np.zeros(1000, np.int64)
    partition = make_partition(labels, 4, "dirichlet", 10.0, 0)
    for part in partition.indices:
        assert part.mean() == pytest.approx(499.5, abs=100)
        assert np.any(np.diff(part) < 0)  # shuffled within the client as well


# --- what holds for every partition -----------------------------------------------------------


@st.composite
def problems(draw):
    num_clients = draw(st.integers(1, 12))
    min_samples = draw(st.integers(1, 10))
    size = num_clients * min_samples + draw(st.integers(0, 120))
    classes = draw(st.lists(st.integers(0, 8), min_size=1, max_size=5))  # with gaps
    labels = np.array(draw(st.lists(st.sampled_from(classes), min_size=size, max_size=size)))
    return {
        "labels": labels.astype(np.int64),
        "num_clients": num_clients,
        "rule": draw(st.sampled_from(["dirichlet", "dirichlet", "iid"])),
        "alpha": draw(st.sampled_from([1e-300, 1e-8, 1e-3, 0.05, 0.1, 1.0, 50.0, 1e300])),
        "seed": draw(st.integers(0, 2**63 - 1)),
        "min_samples": min_samples,
    }


@settings(max_examples=120, deadline=None)
@given(problems())
def test_every_sample_has_one_owner_and_nobody_is_short(problem):
    before = problem["labels"].copy()
    partition = make_partition(**problem)
    assert_is_a_partition(
        partition, problem["labels"], problem["num_clients"], problem["min_samples"]
    )
    assert 0 <= partition.moved <= problem["num_clients"] * problem["min_samples"]
    assert 1 <= partition.draws <= MAX_DRAWS
    assert np.array_equal(problem["labels"], before)


@settings(max_examples=25, deadline=None)
@given(problems(), st.integers(0, 2**32 - 1))
def test_the_seed_decides_and_the_global_one_does_not(problem, global_seed):
    one = make_partition(**problem)
    np.random.seed(global_seed)
    state = np.random.get_state()[1].copy()
    two = make_partition(**problem)
    assert same(one, two)
    assert one.hash == two.hash
    assert np.array_equal(np.random.get_state()[1], state)


@pytest.mark.parametrize("rule", ["dirichlet", "iid"])
def test_seeds_differ(rule):
    hashes = {make_partition(balanced(3, 100), 5, rule, 0.5, seed).hash for seed in range(20)}
    assert len(hashes) == 20


@pytest.mark.parametrize("num_clients", [1, 2, 3, 7, 10])
def test_iid_sizes_differ_by_at_most_one(num_clients):
    labels = balanced(4, 26)  # 104 samples
    partition = make_partition(labels, num_clients, "iid", 0.1, 0)
    assert_is_a_partition(partition, labels, num_clients)
    sizes = [len(part) for part in partition.indices]
    assert max(sizes) - min(sizes) <= 1
    assert (partition.draws, partition.moved) == (1, 0)


def test_iid_parts_have_the_mix_of_the_whole():
    labels = balanced(5, 2000)
    counts = table_of(make_partition(labels, 4, "iid", 0.1, 0), labels)
    # Mean 500, standard deviation below 20.
    assert counts.min() > 420
    assert counts.max() < 580


# --- edges ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["dirichlet", "iid"])
def test_too_many_clients_is_a_sentence_with_the_numbers(rule):
    with pytest.raises(DataError) as caught:
        make_partition(balanced(2, 54), 11, rule, 0.1, 0)
    message = str(caught.value)
    assert "\n" not in message
    for number in ("11 clients", "10 samples", "110", "108", "at most 10 clients"):
        assert number in message


@pytest.mark.parametrize("rule", ["dirichlet", "iid"])
def test_exactly_enough_samples_is_enough(rule):
    labels = balanced(2, 55)
    partition = make_partition(labels, 11, rule, 0.05, 0)
    assert [len(part) for part in partition.indices] == [10] * 11
    assert_is_a_partition(partition, labels, 11)


@pytest.mark.parametrize("rule", ["dirichlet", "iid"])
def test_one_client_gets_everything(rule):
    partition = make_partition(balanced(3, 20), 1, rule, 0.1, 0)
    assert np.array_equal(np.sort(partition.indices[0]), np.arange(60))
    assert partition.moved == 0


@pytest.mark.parametrize("label", [0, 4])
@pytest.mark.parametrize("alpha", [1e-8, 0.1, 10.0])
def test_one_class_only(label, alpha):
    labels = np.full(200, label)
    assert_is_a_partition(make_partition(labels, 6, "dirichlet", alpha, 0), labels, 6)


@pytest.mark.parametrize("alpha", [1e-3, 1e-8])
@pytest.mark.parametrize("num_clients", [2, 20, 100])
def test_a_tiny_alpha_ends(num_clients, alpha):
    labels = balanced(10, 500)
    for seed in range(3):
        partition = make_partition(labels, num_clients, "dirichlet", alpha, seed)
        assert_is_a_partition(partition, labels, num_clients)


def test_a_class_nobody_has_is_nobodys():
    labels = np.repeat([0, 2, 5], 60)
    partition = make_partition(labels, 4, "dirichlet", 0.5, 0)
    assert_is_a_partition(partition, labels, 4)
    assert table_of(partition, labels).sum(axis=1).tolist() == [60, 0, 60, 0, 0, 60]


# --- the hash -----------------------------------------------------------------------------------


def parts(*lists):
    return Partition(tuple(np.array(part, np.int64) for part in lists))


def test_the_hash_tells_assignments_apart():
    assignments = [
        parts([0, 1], [2, 3]),
        parts([0, 2], [1, 3]),  # two samples change owner
        parts([2, 3], [0, 1]),  # the clients change places
        parts([1, 0], [2, 3]),  # another order within a client
        parts([0, 1, 2], [3]),  # another boundary
        parts([0, 1, 2, 3]),
        parts([0, 1], [2, 3], []),
    ]
    assert len({assignment.hash for assignment in assignments}) == len(assignments)


def test_the_hash_is_of_the_assignment_and_not_of_how_it_came_about():
    indices = parts([0, 1], [2, 3]).indices
    assert Partition(indices, draws=7, moved=3).hash == parts([0, 1], [2, 3]).hash
    assert len(parts([0]).hash) == 64


# --- by domain ------------------------------------------------------------------------------


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
    for domain in range(4):
        for label in range(7):
            there = (domains == domain) & (labels == label)
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
