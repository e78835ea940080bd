"""What a client trains on and holds out, and what all clients must agree with."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from node_images import CLIENTS, CPU, NODES, SCHEMA, hospital, images, npz

from fedadb_app.config import RunConfig
from fedadb_app.data.arrays import ImageSchema, held_out
from fedadb_app.data.clients import (
    PartitionClaim,
    SampleCounts,
    client_data,
    image_schema,
    partition_counts,
    partition_of,
    server_dataset,
)
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import ConfigError, DataError

pytestmark = pytest.mark.usefixtures("own_cache")


@given(st.lists(st.integers(0, 4), max_size=60))
def test_a_fifth_of_each_class_is_held_out_and_one_always_stays(labels):
    marked = held_out(np.array(labels, np.int64))
    seen: dict[int, int] = {}
    expected = []
    for label in labels:  # the definition, sample by sample
        seen[label] = seen.get(label, 0) + 1
        few = 2 <= labels.count(label) < 5
        expected.append(seen[label] == labels.count(label) if few else seen[label] % 5 == 0)
    assert marked.tolist() == expected
    for label in set(labels):
        kept = [m for m, y in zip(marked, labels, strict=True) if y == label and not m]
        assert kept


def test_a_node_without_a_test_part_holds_a_share_out_where_clients_evaluate(tmp_path):
    root = hospital(tmp_path / "h", cat=11, dog=3, eel=1)
    data = client_data(CLIENTS, root, CPU)
    assert data.counts == SampleCounts(train=12, held_out=3)
    assert data.train.class_counts.tolist() == [9, 2, 1]
    assert data.held_out.class_counts.tolist() == [2, 1, 0]
    together = torch.cat([data.train.positions, data.held_out.positions])
    assert together.sort().values.tolist() == list(range(15))
    for evaluate, dataset in (("server", "digits"), ("none", "nodes")):
        config = RunConfig(**{**NODES, "dataset": dataset}, evaluate=evaluate)
        data = client_data(config, root, CPU)
        assert data.counts == SampleCounts(train=15, held_out=0)


def test_a_node_with_a_test_part_trains_on_all_the_rest(tmp_path):
    hospital(tmp_path / "h" / "train", cat=11)
    hospital(tmp_path / "h" / "test", cat=2, eel=1)
    data = client_data(CLIENTS, tmp_path / "h", CPU)
    assert data.counts == SampleCounts(train=11, held_out=3)
    assert data.held_out.class_counts.tolist() == [2, 0, 1]


def test_a_single_image_is_a_training_image(tmp_path):
    data = client_data(CLIENTS, hospital(tmp_path / "h", dog=1), CPU)
    assert data.counts == SampleCounts(train=1, held_out=0)


def test_only_training_images_are_flipped(tmp_path):
    root = hospital(tmp_path / "h", cat=5)
    config = RunConfig(**NODES, evaluate="clients", augment=True)
    data = client_data(config, root, CPU)
    assert (data.train.augmented, data.held_out.augmented) == (True, False)


@pytest.mark.parametrize("evaluate", ["clients", "both"])
def test_a_part_of_a_public_data_set_is_divided_the_same_way(evaluate):
    config = RunConfig(alpha=0.3, evaluate=evaluate)
    dataset = open_dataset("digits", "")
    partition = partition_of(config, 4)
    counts = partition_counts(config, partition)
    for client, part in enumerate(partition.indices):
        data = client_data(config, PartitionClaim(client, 4), CPU)
        marked = held_out(dataset.train_labels[part])
        assert data.train.positions.tolist() == part[~marked].tolist()
        assert data.held_out.positions.tolist() == part[marked].tolist()
        assert data.counts == counts[client]
    assert sum(c.train + c.held_out for c in counts.values()) == 1437


def test_without_evaluation_by_clients_a_part_is_trained_on_as_it_is():
    config = RunConfig(alpha=0.3)
    partition = partition_of(config, 4)
    for client, part in enumerate(partition.indices):
        data = client_data(config, PartitionClaim(client, 4), CPU)
        assert data.train.positions.tolist() == part.tolist()
        assert data.counts == SampleCounts(len(part), 0)


def test_the_schema_of_parts_is_the_data_sets():
    assert image_schema(RunConfig()) == ImageSchema(tuple("0123456789"), (1, 28, 28))


def test_the_schema_of_own_data_is_the_run_configurations():
    assert image_schema(CLIENTS) == SCHEMA
    assert server_dataset(CLIENTS) is None
    small = CLIENTS.model_copy(update={"image_shape": "3x20x28"})
    with pytest.raises(DataError, match=r'image-shape="3x20x28".*28 to 1024'):
        image_schema(small)


def test_the_servers_test_set_must_fit_the_nodes_data(tmp_path):
    """Its folders say what its labels mean; an .npz has no names, there the nodes' count."""
    values = {"classes": "cat,dog,eel", "image_shape": "1x28x28", "evaluate": "both"}
    folder = str(hospital(tmp_path / "h", cat=2, dog=2, eel=2))
    made = {f"{part}_labels": np.arange(3) for part in ("train", "test")}
    made |= {f"{part}_images": images(3) for part in ("train", "test")}
    for path in (folder, str(npz(tmp_path / "h.npz", **made))):
        config = RunConfig(**values, dataset=path)
        assert server_dataset(config).test_labels.tolist() == [0, 1, 2]
        with pytest.raises(ConfigError, match=r"does not fit dataset=.* the 3 classes"):
            server_dataset(config.model_copy(update={"classes": "cat,dog"}))
        wide = config.model_copy(update={"image_shape": "3x28x32"})
        assert server_dataset(wide).image_shape == (3, 28, 32)
    swapped = RunConfig(**{**values, "classes": "dog,cat,eel"}, dataset=folder)
    with pytest.raises(ConfigError, match="the 3 classes cat, dog, eel, in this order"):
        server_dataset(swapped)
