"""Labels to deal out, and what must be true of every assignment."""

import numpy as np

from fedadb_app.data.partition import MIN_SAMPLES, Samples
from fedadb_app.data.registry import PARTITIONS
from fedadb_app.randomness import numpy_generator


def make_partition(labels, num_clients, rule, seed=0, min_samples=MIN_SAMPLES, **settings):
    """Deal labels as a run of this seed does."""
    deal, rng = PARTITIONS[rule].deal, numpy_generator(seed, "partition")
    return deal(Samples("x", labels), num_clients, rng, min_samples=min_samples, **settings)


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
