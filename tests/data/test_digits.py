"""Scikit-learn's digits: which images, how enlarged, which are the test part."""

from pathlib import Path

import numpy as np
import pytest
from image_files import reopen
from sklearn.datasets import load_digits

from fedadb_app.data.sources import open_dataset

pytestmark = pytest.mark.usefixtures("cache")


def test_digits_are_1797_small_grey_images(cache):
    data = open_dataset("digits", "")
    assert data.train_images.shape == (1437, 1, 28, 28)
    assert data.test_images.shape == (360, 1, 28, 28)
    assert data.image_shape == (1, 28, 28)
    assert data.num_classes == 10
    assert data.class_names == tuple("0123456789")
    for part in ("train", "test"):
        images, labels = getattr(data, f"{part}_images"), getattr(data, f"{part}_labels")
        assert isinstance(images, np.memmap)
        assert Path(images.filename).is_relative_to(cache)
        assert (images.dtype, labels.dtype) == (np.uint8, np.int64)
        assert labels.shape == (len(images),)
    assert (data.train_images.min(), data.train_images.max()) == (0, 255)
    # Stratified: about a fifth of each class is held out.
    shares = np.bincount(data.test_labels) / np.bincount(load_digits().target)
    assert np.abs(shares - 360 / 1797).max() < 0.01


def test_digits_are_scikit_learns_each_with_its_label_and_none_twice():
    data, original = open_dataset("digits", ""), load_digits()
    images = np.concatenate([data.train_images, data.test_images])[:, 0].astype(float)
    labels = np.concatenate([data.train_labels, data.test_labels])
    # Back to 8x8 and 17 levels: the nearest original must have the label, and be met once.
    centres = np.floor((np.arange(8) + 0.5) * 28 / 8).astype(int)
    small = images[:, centres][:, :, centres].reshape(1797, 64)
    known = original.images.reshape(1797, 64) * 255 / 16
    distance = (small**2).sum(1)[:, None] + (known**2).sum(1) - 2 * small @ known.T
    nearest = distance.argmin(1)
    assert np.array_equal(original.target[nearest], labels)
    assert np.array_equal(np.sort(nearest), np.arange(1797))


def test_digits_are_enlarged_linearly():
    # Where each of the 28 pixels' centres lies on the line of 8 pixels, by hand.
    at = np.clip((np.arange(28) + 0.5) * 8 / 28 - 0.5, 0, 7)
    data = open_dataset("digits", "")
    known = np.round(load_digits().images * 255 / 16)
    lines = np.stack([np.interp(at, np.arange(8), row) for row in known[0]])
    expected = np.stack([np.interp(at, np.arange(8), column) for column in lines.T]).T
    images = np.concatenate([data.train_images, data.test_images])[:, 0].astype(float)
    assert np.abs(images - expected).max(axis=(1, 2)).min() <= 1.5  # rounding, twice


def test_digits_split_is_the_same_for_ever(tmp_path, monkeypatch):
    np.random.seed(1)
    one = open_dataset("digits", "")
    # Recorded: the first test labels. Another split on another machine would put one client's
    # training images into the server's test part.
    assert one.test_labels[:12].tolist() == [1, 4, 8, 6, 5, 9, 9, 1, 3, 2, 2, 2]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    np.random.seed(2)
    two = reopen("digits", "")
    assert two.train_images.filename != one.train_images.filename
    for name in ("train_images", "train_labels", "test_images", "test_labels"):
        assert np.array_equal(getattr(one, name), getattr(two, name))
