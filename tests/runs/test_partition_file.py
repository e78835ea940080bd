"""``partition.json``: who holds what, and nothing that a node would not tell."""

import math

import numpy as np
import pytest
from helpers import read_json
from run_folders import summary, write_partition

from fedadb_app.config import RunConfig
from fedadb_app.data.arrays import ImageSchema
from fedadb_app.data.clients import SampleCounts, partition_of
from fedadb_app.data.partition import Partition
from fedadb_app.data.sources import open_dataset
from fedadb_app.runs.writer import RunFolder


def test_the_partition_is_described(folder, config):
    partition, dataset = write_partition(folder, config)
    found = read_json(folder.path / "partition.json")
    assert (found["rule"], found["alpha"], found["seed"]) == ("dirichlet", 0.1, 3)
    assert found["hash"] == partition.hash
    assert found["classes"] == list(dataset.class_names)
    assert len(found["clients"]) == 4
    for client, part in zip(found["clients"], partition.indices, strict=True):
        labels = dataset.train_labels[part].tolist()
        assert client["size"] == len(part)
        assert client["class_counts"] == [labels.count(c) for c in range(10)]
    total = np.sum([client["class_counts"] for client in found["clients"]], axis=0)
    assert total.tolist() == np.bincount(dataset.train_labels).tolist()


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        ("dirichlet", {"alpha": 0.1}),
        ("iid", {}),
        ("domain", {"classes_per_client": 2}),
        ("classes", {"classes_per_client": 2}),
        ("quantity", {"alpha": 0.1}),
        ("natural", {}),
    ],
)
def test_of_a_partition_only_what_its_rule_reads_is_told(folder, config, rule, settings):
    dataset = open_dataset("digits", "")
    partition = partition_of(RunConfig(), 4)
    folder.write_partition(partition, config.model_copy(update={"partition": rule}), dataset)
    found = read_json(folder.path / "partition.json")
    keys = ("rule", "alpha", "classes_per_client")
    assert {key: found[key] for key in keys if key in found} == {"rule": rule, **settings}


def test_how_skewed_it_is_and_what_is_left_out(folder, config):
    """Client 0 holds class 0 alone, client 1 classes 0 and 1 in halves; by hand, base 2."""
    dataset = open_dataset("digits", "")
    zeros, ones = (np.flatnonzero(dataset.train_labels == c)[:60] for c in (0, 1))
    parts = Partition((zeros[:30], np.concatenate([zeros[30:45], ones[:15]])))
    folder.write_partition(parts, config, dataset)
    found = read_json(folder.path / "partition.json")
    assert (found["dealt"], found["left_out"]) == (60, len(dataset.train_labels) - 60)
    # The whole is (3/4, 1/4); with (1, 0) the mean is (7/8, 1/8), with (1/2, 1/2) (5/8, 3/8).
    one = (math.log2(8 / 7) + 0.75 * math.log2(6 / 7) + 0.25 * math.log2(2)) / 2
    two = (
        0.5 * math.log2(4 / 5)
        + 0.5 * math.log2(4 / 3)
        + 0.75 * math.log2(6 / 5)
        + 0.25 * math.log2(2 / 3)
    ) / 2
    distances = [round(math.sqrt(one), 4), round(math.sqrt(two), 4)]
    assert [client["jensen_shannon_distance"] for client in found["clients"]] == distances
    assert found["skew"]["max_jensen_shannon_distance"] == distances[0]
    assert found["skew"]["mean_jensen_shannon_distance"] == pytest.approx(np.mean(distances), 1e-3)
    assert found["skew"]["missing_class_rate"] == 0.25  # of the two classes that somebody holds


def test_of_nodes_with_their_own_data_only_sizes_are_told(folder):
    schema = ImageSchema(("cat", "dog"), (1, 28, 28))
    stated = {2**63 + 5: SampleCounts(70, 9), 12: SampleCounts(1, 0)}
    folder.write_nodes(stated, schema)
    assert read_json(folder.path / "partition.json") == {
        "rule": "nodes",
        "classes": ["cat", "dog"],
        "clients": [{"client": 12, "size": 1}, {"client": 2**63 + 5, "size": 70}],
    }
    folder.write_summary("running")
    assert summary(folder)["clients"] == 2


def test_a_hash_stands_for_one_assignment(tmp_path):
    hashes = set()
    for seed, alpha in ((0, 0.1), (1, 0.1), (0, 0.2)):
        name = f"{seed}-{alpha}"
        config = RunConfig(output_dir=str(tmp_path), run_name=name, seed=seed, alpha=alpha)
        folder = RunFolder.create(config, 1)
        write_partition(folder, config)
        hashes.add(read_json(folder.path / "partition.json")["hash"])
    assert len(hashes) == 3
