"""What is true of every rule: each sample has one owner, nobody is short, the seed decides."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitions import assert_is_a_partition, balanced, make_partition, same, table_of

from fedadb_app.config import RunConfig
from fedadb_app.data.partition import MIN_SAMPLES, Partition, Samples
from fedadb_app.data.registry import PARTITIONS
from fedadb_app.data.rules.dirichlet import MAX_DRAWS
from fedadb_app.errors import DataError
from fedadb_app.randomness import numpy_generator

# --- what holds for every partition -----------------------------------------------------------


RULES = [("dirichlet", {"alpha": 0.1}), ("iid", {}), ("quantity", {"alpha": 0.1})]
"""Those that deal every sample; of the others a file of their own says what is true."""


@pytest.mark.parametrize("rule", PARTITIONS)
def test_every_registered_rule(rule):
    """Nobody is short, no sample has two owners, and it asks for nothing but known keys."""
    entry, config = PARTITIONS[rule], RunConfig()
    labels = np.random.default_rng(0).permutation(balanced(6, 60))
    samples = Samples("x", labels, np.arange(360) % 3)
    assert set(entry.settings) <= set(RunConfig.model_fields)
    values = {key: getattr(config, key) for key in entry.settings}
    one, two, other = (
        entry.deal(samples, 9, numpy_generator(seed, "partition"), **values) for seed in (0, 0, 1)
    )
    assert one.hash == two.hash != other.hash
    everyone = np.concatenate(one.indices)
    assert len(one.indices) == 9
    assert len(set(everyone.tolist())) == len(everyone)
    assert min(map(len, one.indices)) >= MIN_SAMPLES


@st.composite
def problems(draw):
    num_clients = draw(st.integers(1, 12))
    min_samples = draw(st.integers(1, 10))
    size = num_clients * min_samples + draw(st.integers(0, 120))
    classes = draw(st.lists(st.integers(0, 8), min_size=1, max_size=5))  # with gaps
    labels = np.array(draw(st.lists(st.sampled_from(classes), min_size=size, max_size=size)))
    alpha = draw(st.sampled_from([1e-300, 1e-8, 1e-3, 0.05, 0.1, 1.0, 50.0, 1e300]))
    rules = [("dirichlet", {"alpha": alpha}), ("iid", {}), ("quantity", {"alpha": alpha})]
    rule, settings = draw(st.sampled_from(rules))
    return settings | {
        "labels": labels.astype(np.int64),
        "num_clients": num_clients,
        "rule": rule,
        "seed": draw(st.integers(0, 2**63 - 1)),
        "min_samples": min_samples,
    }


@settings(max_examples=120)
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


@settings(max_examples=25)
@given(problems(), st.integers(0, 2**32 - 1))
def test_the_seed_decides_and_the_global_one_does_not(problem, global_seed):
    one = make_partition(**problem)
    np.random.seed(global_seed)
    state = np.random.get_state()[1].copy()
    two = make_partition(**problem)
    assert same(one, two)
    assert one.hash == two.hash
    assert np.array_equal(np.random.get_state()[1], state)


@pytest.mark.parametrize(("rule", "values"), RULES)
def test_seeds_differ(rule, values):
    hashes = {make_partition(balanced(3, 100), 5, rule, seed, **values).hash for seed in range(20)}
    assert len(hashes) == 20


@pytest.mark.parametrize("num_clients", [1, 2, 3, 7, 10])
def test_iid_sizes_differ_by_at_most_one(num_clients):
    labels = balanced(4, 26)  # 104 samples
    partition = make_partition(labels, num_clients, "iid")
    assert_is_a_partition(partition, labels, num_clients)
    sizes = [len(part) for part in partition.indices]
    assert max(sizes) - min(sizes) <= 1
    assert (partition.draws, partition.moved) == (1, 0)


def test_iid_parts_have_the_mix_of_the_whole():
    labels = balanced(5, 2000)
    counts = table_of(make_partition(labels, 4, "iid"), labels)
    # Mean 500, standard deviation below 20.
    assert counts.min() > 420
    assert counts.max() < 580


# --- edges ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "values"), RULES)
def test_too_many_clients_is_a_sentence_with_the_numbers(rule, values):
    with pytest.raises(DataError) as caught:
        make_partition(balanced(2, 54), 11, rule, **values)
    message = str(caught.value)
    assert "\n" not in message
    for number in ("11 clients", "10 samples", "110", "108", "at most 10 clients"):
        assert number in message


@pytest.mark.parametrize(("rule", "values"), RULES)
def test_exactly_enough_samples_is_enough(rule, values):
    labels = balanced(2, 55)
    partition = make_partition(labels, 11, rule, **values)
    assert [len(part) for part in partition.indices] == [10] * 11
    assert_is_a_partition(partition, labels, 11)


@pytest.mark.parametrize(("rule", "values"), RULES)
def test_one_client_gets_everything(rule, values):
    partition = make_partition(balanced(3, 20), 1, rule, **values)
    assert np.array_equal(np.sort(partition.indices[0]), np.arange(60))
    assert partition.moved == 0


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
