"""Files in MedMNIST layout: what is read from them."""

import numpy as np
import pytest
from image_files import arrays, save

from fedadb_app.data.sources import open_dataset

pytestmark = pytest.mark.usefixtures("cache")


@pytest.mark.parametrize("how", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("channels", [(), (1,), (3,)])
def test_npz_is_merged_squeezed_and_channels_first(tmp_path, channels, how):
    made = arrays(side=(28, 30), channels=channels)
    data = open_dataset(str(save(tmp_path / "x.npz", made, how)), "")
    depth = channels[0] if channels else 1
    assert data.image_shape == (depth, 28, 30)
    train = np.concatenate([made["train_images"], made["val_images"]])
    for images, expected in ((data.train_images, train), (data.test_images, made["test_images"])):
        assert isinstance(images, np.memmap)
        assert images.dtype == np.uint8
        for channel in range(depth):
            plane = expected[..., channel] if channels else expected
            assert np.array_equal(images[:, channel], plane)
    assert data.train_labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert data.test_labels.tolist() == [0, 1, 2, 0]
    assert data.train_labels.dtype == np.int64
    assert data.class_names == ("0", "1", "2")


def test_npz_without_validation_part_and_with_flat_labels(tmp_path):
    made = arrays()
    del made["val_images"], made["val_labels"]
    made["train_labels"] = np.array([4, 0, 1, 0, 0, 1], np.int32)
    data = open_dataset(str(save(tmp_path / "x.npz", made)), "")
    assert data.train_labels.tolist() == [4, 0, 1, 0, 0, 1]
    assert np.array_equal(data.train_images[:, 0], made["train_images"])
    assert data.num_classes == 5  # up to the largest label; nobody has 3


def test_a_class_only_in_the_test_part_counts(tmp_path):
    made = arrays()
    made["test_labels"][:] = 7
    assert open_dataset(str(save(tmp_path / "x.npz", made)), "").num_classes == 8


def test_npz_larger_than_a_slice_is_complete(tmp_path):
    made = arrays(train=2049, val=1024, test=1025, side=(28, 29))
    data = open_dataset(str(save(tmp_path / "x.npz", made)), "")
    train = np.concatenate([made["train_images"], made["val_images"]])
    assert np.array_equal(data.train_images[:, 0], train)
    assert np.array_equal(data.test_images[:, 0], made["test_images"])


@pytest.mark.parametrize("side", [(28, 28), (224, 224), (28, 1024)])
def test_the_smallest_and_the_largest_side_are_allowed(tmp_path, side):
    path = save(tmp_path / "x.npz", arrays(side=side))
    assert open_dataset(str(path), "").image_shape == (1, *side)
