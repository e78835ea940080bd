"""From uint8 pixels to normalised batches."""

import numpy as np
import pytest
import torch

from fedadb_app.config import RunConfig
from fedadb_app.data.batches import LocalData
from fedadb_app.data.clients import PartitionClaim, client_data
from fedadb_app.data.sources import open_dataset

CPU = torch.device("cpu")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def make_data(positions, *, total=None, labels=None, num_classes=5, shape=(1, 28, 28)):
    """Images whose every pixel is the image's row number, so that a batch tells who is in it."""
    positions = np.asarray(positions, np.int64)
    total = total or int(positions.max()) + 1
    rows = np.arange(total, dtype=np.uint8).reshape(-1, 1, 1, 1)
    images = np.ascontiguousarray(np.broadcast_to(rows, (total, *shape)))
    if labels is None:
        labels = np.arange(total) % num_classes
    labels = np.asarray(labels, np.int64)
    return LocalData.from_arrays(images, labels, positions, num_classes, CPU)


def rows_of(images):
    """Invert make_data's images to row numbers, by the formula of the normalisation."""
    return ((images[:, 0, 0, 0].double() * 0.5 + 0.5) * 255).round().long().tolist()


# --- one client's samples -------------------------------------------------------------------


def test_images_are_the_machines_and_not_a_copy(tmp_path):
    path = tmp_path / "images.npy"
    np.save(path, np.zeros((50, 3, 28, 28), np.uint8))
    images = np.load(path, mmap_mode="c")
    one, two = (
        LocalData.from_arrays(images, np.zeros(50, np.int64), np.array(positions), 2, CPU)
        for positions in ([1, 2], [3])
    )
    assert one.images.data_ptr() == two.images.data_ptr() == images.ctypes.data
    assert one.images.shape == images.shape


def test_class_counts_are_of_this_client_over_all_classes():
    data = make_data([0, 2, 3, 6], labels=[1, 0, 1, 3, 0, 0, 3, 2], num_classes=6, total=8)
    assert data.class_counts.tolist() == [0, 2, 0, 2, 0, 0]  # labels 1, 1, 3, 3
    assert data.class_counts.dtype == torch.int64
    assert len(data) == 4


def test_load_gives_the_images_at_positions_within_the_client():
    data = make_data([9, 4, 7])
    assert rows_of(data.load(torch.tensor([2, 0, 0]))) == [7, 9, 9]


@pytest.mark.usefixtures("own_cache")
def test_the_clients_of_a_run_hold_the_whole_training_part_together():
    config = RunConfig(dataset="digits", alpha=0.5, augment=True)
    dataset = open_dataset("digits", "")
    parts = [client_data(config, PartitionClaim(k, 6), CPU) for k in range(6)]
    assert all(len(part.held_out) == 0 for part in parts)  # the server evaluates
    clients = [part.train for part in parts]
    positions = torch.cat([client.positions for client in clients])
    assert torch.equal(positions.sort().values, torch.arange(1437))
    for client in clients:
        assert client.images.data_ptr() == dataset.train_images.ctypes.data
        assert client.labels.tolist() == dataset.train_labels[client.positions.numpy()].tolist()
        assert client.num_classes == len(client.class_counts) == 10
        assert client.augmented


# --- epochs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "batch_size", "sizes"),
    [(10, 4, [4, 4, 2]), (8, 4, [4, 4]), (3, 128, [3]), (5, 1, [1] * 5), (9, 8, [8, 1])],
)
def test_an_epoch_holds_every_sample_once_and_the_last_smaller_batch(samples, batch_size, sizes):
    positions = np.arange(samples) * 3 + 1
    data = make_data(positions, labels=np.arange(samples * 3) % 5)
    batches = list(data.epoch(batch_size, generator()))
    assert [len(batch) for batch in batches] == sizes
    assert [len(batch.images) for batch in batches] == sizes
    seen = [row for batch in batches for row in rows_of(batch.images)]
    assert sorted(seen) == positions.tolist()
    for batch in batches:  # each image still has its own label
        assert batch.labels.tolist() == [row % 5 for row in rows_of(batch.images)]
        assert batch.labels.dtype == torch.int64


def order(data, rng, batch_size=7):
    return [row for batch in data.epoch(batch_size, rng) for row in rows_of(batch.images)]


def test_the_order_follows_from_the_generator_alone():
    data = make_data(np.arange(40))
    torch.manual_seed(1)
    first = order(data, generator(3))
    torch.manual_seed(2)
    assert order(data, generator(3)) == first
    assert order(data, generator(4)) != first
    assert first != sorted(first)


def test_the_next_epoch_has_another_order():
    data, rng = make_data(np.arange(40)), generator()
    assert order(data, rng) != order(data, rng)


def test_without_augmentation_images_are_as_stored():
    pixels = np.random.default_rng(0).integers(0, 256, (20, 3, 28, 30), dtype=np.uint8)
    data = LocalData.from_arrays(pixels, np.zeros(20, np.int64), np.arange(20), 1, CPU)
    for batch in data.epoch(8, generator()):
        expected = (pixels[batch.indices] / 255 - 0.5) / 0.5
        assert np.abs(batch.images.numpy() - expected).max() < 1e-6


# --- augmentation ---------------------------------------------------------------------------


def flip_data(count=200, shape=(3, 28, 30)):
    pixels = np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)
    labels = np.arange(count, dtype=np.int64) % 4
    return pixels, LocalData.from_arrays(pixels, labels, np.arange(count), 4, CPU, augmented=True)


def test_augmentation_mirrors_whole_images_left_to_right_and_does_nothing_else():
    pixels, data = flip_data()
    flipped = 0
    for batch in data.epoch(32, generator()):
        for image, index in zip(batch.images.numpy(), batch.indices.tolist(), strict=True):
            original = (pixels[index] / 255 - 0.5) / 0.5
            mirrored = original[:, :, ::-1]
            same, mirror = (np.abs(image - x).max() < 1e-6 for x in (original, mirrored))
            assert same != mirror
            flipped += mirror
    assert 60 < flipped < 140  # binomial(200, 1/2): mean 100, standard deviation 7


def test_the_same_generator_flips_the_same_images():
    _, data = flip_data(50)
    one, two, other = (
        torch.cat([batch.images for batch in data.epoch(16, generator(seed))]) for seed in (1, 1, 2)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_what_others_draw_or_leave_unread_changes_neither_order_nor_flips():
    _, data = flip_data(50)
    plain = [(b.indices.tolist(), b.images) for b in data.epoch(16, generator())]
    for number, batch in enumerate(data.epoch(16, generator())):
        torch.rand(3, generator=generator(9))
        assert batch.indices.tolist() == plain[number][0]
        if number == 2:  # the first two were never read
            assert torch.equal(batch.images, plain[2][1])


def test_a_batch_asked_twice_for_its_images_gives_the_same():
    _, data = flip_data(64)
    batch = next(data.epoch(64, generator()))
    assert torch.equal(batch.images, batch.images)


def test_augmentation_leaves_the_stored_images_and_the_labels_alone():
    pixels, data = flip_data(60)
    before = pixels.copy()
    for batch in data.epoch(16, generator()):
        assert batch.images.shape[1:] == (3, 28, 30)
        assert batch.labels.tolist() == [i % 4 for i in batch.indices.tolist()]
    assert np.array_equal(pixels, before)
