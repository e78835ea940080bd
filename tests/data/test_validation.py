"""The validation part: whose images are in it, and that nobody trains on them."""

import numpy as np
import pytest
import torch
from helpers import own_data
from hypothesis import given, settings
from hypothesis import strategies as st

from fedadb_app.config import RunConfig
from fedadb_app.data.clients import (
    SampleCounts,
    client_data,
    dataset_of,
    partition_of,
    validation_part,
    validation_rows,
)
from fedadb_app.data.prepared import ImageDataset
from fedadb_app.data.validation import draw_fraction, draw_validation
from fedadb_app.errors import ConfigError


def dataset(labels: list[int], patients: list[int] | None = None, official: int = 0):
    labels_, none = np.array(labels, np.int64), np.empty((0, 1, 28, 28), np.uint8)
    return ImageDataset(
        name="made",
        class_names=("a", "b", "c"),
        train_images=np.zeros((len(labels), 1, 28, 28), np.uint8),
        train_labels=labels_,
        test_images=none,
        test_labels=labels_[:0],
        digest="",
        train_patients=None if patients is None else np.array(patients, np.int64),
        num_validation=official,
    )


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(0, 2), min_size=60, max_size=90), st.sampled_from(["0.1", "0.25", ".5"])
)
def test_a_fraction_of_each_class_and_never_all_of_one(labels, fraction):
    rows = draw_validation(RunConfig(validation=fraction), dataset(labels))
    assert rows.tolist() == sorted(set(rows.tolist()))
    for label in range(3):
        n = labels.count(label)
        kept = sum(labels[row] == label for row in rows)
        assert kept == max(0, min(round(float(fraction) * n), n - 1))


def test_the_seed_draws_it():
    made = dataset([0, 1, 2] * 20)
    draws = [draw_validation(RunConfig(validation="0.2", seed=s), made).tolist() for s in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_patients_are_kept_whole():
    patients = np.repeat(np.arange(30), 3)
    made = dataset([0, 1, 2] * 30, patients.tolist())
    rows = draw_validation(RunConfig(validation="0.1"), made)
    assert set(patients[rows]).isdisjoint(np.delete(patients, rows))
    assert len(rows) == 9  # of 90
    assert len(draw_validation(RunConfig(validation="0.5"), made)) == 45


def test_the_official_part_is_the_last_of_the_images():
    rows = draw_validation(RunConfig(validation="official"), dataset([0, 1, 2, 2], official=3))
    assert rows.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("asked", "labels", "words"),
    [
        ("official", [0, 1, 2], 'dataset="digits" has no official validation part; use a fraction'),
        ("0.01", [0, 1, 2] * 5, "of the 15 training images .* is none: use a larger fraction"),
    ],
)
def test_a_part_without_an_image_is_refused(asked, labels, words):
    with pytest.raises(ConfigError, match=words):
        draw_validation(RunConfig(validation=asked), dataset(labels))


@pytest.fixture
def archive(tmp_path) -> str:
    rng = np.random.default_rng(0)
    arrays = {}
    for part, size in (("train", 60), ("val", 12), ("test", 8)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (size, 28, 28), np.uint8)
        arrays[f"{part}_labels"] = np.arange(size)[:, None] % 4
    np.savez(tmp_path / "made.npz", **arrays)
    return str(tmp_path / "made.npz")


@pytest.mark.parametrize(("asked", "kept"), [("merged", 0), ("official", 12), ("0.5", 36)])
def test_no_client_trains_on_it(archive, asked, kept):
    config = RunConfig(dataset=archive, validation=asked)
    held, dealt = validation_rows(config), partition_of(config, 3).indices
    assert len(held) == kept
    assert sorted(np.concatenate([held, *dealt])) == list(range(72))
    made = dataset_of(config)
    part = validation_part(config, made, "cpu")
    assert part.labels.tolist() == made.train_labels[held].tolist()
    if asked == "official":
        with np.load(archive) as file:
            assert np.array_equal(made.train_images[held][:, 0], file["val_images"])


# --- of a node's own images -----------------------------------------------------------------

NODES = {"dataset": "nodes", "classes": "a,b", "image_shape": "1x28x28", "evaluate": "clients"}


@pytest.mark.parametrize(
    ("labels", "test", "counts"),
    [
        # 8 and 4 are held out; of the 32 and 16 others a fourth is kept
        ([0] * 40 + [1] * 20, [], SampleCounts(36, 12, 12)),
        ([0] * 40 + [1] * 20, [0, 1] * 5, SampleCounts(45, 10, 15)),
        ([0], [], SampleCounts(1, 0, 0)),  # it is never asked to evaluate
    ],
)
def test_a_node_keeps_a_part_of_each_class(tmp_path, labels, test, counts):
    path = tmp_path / "own.npz"
    own_data(path, labels, test)
    config = RunConfig(**NODES, validation="0.25")
    data, again = (client_data(config, path, torch.device("cpu")) for _ in range(2))
    assert data.counts == counts
    parts = [data.train, *([] if test else [data.held_out])]
    parts += [] if data.validation is None else [data.validation]
    rows = torch.cat([part.positions for part in parts]).tolist()
    assert sorted(rows) == list(range(len(labels)))
    if data.validation is not None:
        assert torch.equal(data.validation.positions, again.validation.positions)
        share = data.validation.class_counts.tolist()
        assert share[0] == 2 * share[1]
    assert client_data(RunConfig(**NODES), path, torch.device("cpu")).validation is None


def test_a_node_keeps_patients_whole():
    patients = np.repeat(np.arange(30), 3)
    made, rows = dataset([0, 1, 2] * 30, patients.tolist()), np.arange(0, 60)
    kept = draw_fraction(RunConfig(validation="0.25"), made, rows)
    assert set(kept) < set(rows)
    assert set(patients[kept]).isdisjoint(patients[np.setdiff1d(rows, kept)])
    assert len(kept) == 15
