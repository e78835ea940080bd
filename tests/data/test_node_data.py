"""A node's own images: what is read from them, and what is refused."""

import os
from pathlib import Path

import numpy as np
import pytest
from node_images import (
    SCHEMA,
    hospital,
    images,
    npz,
    picture,
    refused,
    train_labels,
)
from PIL import Image

from fedadb_app.data.arrays import ImageSchema
from fedadb_app.data.intake import folder
from fedadb_app.data.prepared import cache_folder
from fedadb_app.data.sources import open_node_data

pytestmark = pytest.mark.usefixtures("own_cache")


def test_a_missing_class_does_not_shift_the_labels(tmp_path):
    """Alphabetically eel would be 1; in this federation it is 2."""
    found = open_node_data(hospital(tmp_path / "h", cat=2, eel=3), SCHEMA)
    assert found.train_labels.tolist() == [0, 0, 2, 2, 2]
    assert found.train_images[:, 0, 0, 0].tolist() == [0, 1, 100, 101, 102]
    assert found.train_labels.dtype == np.int64
    assert isinstance(found.train_images, np.memmap)
    assert len(found.test_labels) == len(found.test_images) == 0


def test_labels_follow_the_federations_order_not_the_alphabet(tmp_path):
    root = hospital(tmp_path / "h", cat=1, dog=1)
    assert train_labels(root) == [0, 1]
    found = open_node_data(root, ImageSchema(("eel", "dog", "cat"), (1, 28, 28)))
    pixels = found.train_images[:, 0, 0, 0].tolist()
    assert dict(zip(pixels, found.train_labels.tolist(), strict=True)) == {0: 2, 100: 1}


def test_one_image_is_enough(tmp_path):
    assert train_labels(hospital(tmp_path / "h", eel=1)) == [2]
    path = npz(tmp_path / "one.npz", train_images=images(1), train_labels=np.array([[1]]))
    assert train_labels(path) == [1]


def test_train_and_test_parts(tmp_path):
    hospital(tmp_path / "h" / "train", dog=2)
    assert train_labels(tmp_path / "h") == [1, 1]
    hospital(tmp_path / "h" / "test", cat=1, eel=2)  # classes that are not trained on
    found = open_node_data(tmp_path / "h", SCHEMA)
    assert found.train_labels.tolist() == [1, 1]
    assert found.test_labels.tolist() == [0, 2, 2]


def test_an_npz_with_and_without_a_test_part(tmp_path):
    parts = {"train": 5, "val": 2, "test": 3}
    made = {f"{p}_images": images(n) for p, n in parts.items()}
    made |= {f"{p}_labels": np.arange(n)[:, None] % 3 for p, n in parts.items()}
    found = open_node_data(npz(tmp_path / "h.npz", **made), SCHEMA)
    assert found.train_labels.tolist() == [0, 1, 2, 0, 1, 0, 1]
    assert (found.train_images[:5, 0] == made["train_images"]).all()
    assert found.test_labels.tolist() == [0, 1, 2]
    for name in ("test_images", "test_labels"):
        del made[name]
    found = open_node_data(npz(tmp_path / "other.npz", **made), SCHEMA)
    assert (len(found.train_labels), len(found.test_labels)) == (7, 0)


def test_an_empty_class_folder_is_a_class_without_images(tmp_path):
    root = hospital(tmp_path / "h", cat=2)
    (root / "dog").mkdir()
    assert train_labels(root) == [0, 0]


def test_data_are_decoded_once_and_again_when_they_change(tmp_path, monkeypatch):
    root = hospital(tmp_path / "h", cat=3, dog=3)
    open_node_data(root, SCHEMA)
    decode, read = folder.decode, []
    monkeypatch.setattr(
        folder, "decode", lambda file, *how: read.append(file) or decode(file, *how)
    )
    open_node_data(root, SCHEMA)
    assert read == []
    changes = [
        lambda: picture(root / "cat" / "09.png", 9),  # a name
        lambda: picture(root / "cat" / "09.png", 9, mode="L").write_bytes(
            picture(tmp_path / "big.png", 7).read_bytes() + b" "
        ),  # a size
        lambda: os.utime(root / "cat" / "00.png", ns=(1, 1)),  # a time
        lambda: (root / "dog" / "00.png").rename(root / "dog" / "0.png"),
        lambda: (root / "dog" / "01.png").unlink(),
        lambda: (root / "dog").rename(root / "eel"),  # another label
    ]
    for change in changes:
        read.clear()
        change()
        labels = train_labels(root)
        assert len(read) == len(labels) > 0
    assert labels == [0, 0, 0, 0, 2, 2]


def test_a_class_folder_that_is_a_link_is_watched_too(tmp_path):
    pool = hospital(tmp_path / "pool", cat=2)
    root = tmp_path / "h"
    root.mkdir()
    (root / "dog").symlink_to(pool / "cat")
    assert train_labels(root) == [1, 1]
    picture(pool / "cat" / "99.png", 5)
    assert len(train_labels(root)) == 3


def test_the_prepared_copy_is_for_this_user_only(tmp_path):
    open_node_data(hospital(tmp_path / "h", cat=1), SCHEMA)
    (copy,) = [p for p in (cache_folder() / "prepared").iterdir() if p.is_dir()]
    assert copy.stat().st_mode & 0o077 == 0


def test_no_such_path(tmp_path):
    refused(tmp_path / "nowhere", "no such file or folder, or no right to see it")


def test_an_unknown_class_folder(tmp_path):
    root = hospital(tmp_path / "h", cat=2, dgo=2)
    refused(root, "none of the federation's classes (cat, dog, eel)", where=root / "dgo")
    for part in ("train", "test"):
        hospital(tmp_path / "parts" / part, cat=1)
    hospital(tmp_path / "parts" / "test", bird=1)
    refused(tmp_path / "parts", "none of the", where=tmp_path / "parts" / "test" / "bird")


def test_an_unreadable_image(tmp_path):
    root = hospital(tmp_path / "h", cat=2, dog=2)
    (root / "dog" / "01.png").write_bytes(b"not an image")
    refused(root, "cannot be read as an image", where=root / "dog" / "01.png")


@pytest.mark.parametrize(
    "change",
    [{"size": (32, 28)}, {"size": (90, 300)}, {"mode": "RGB", "value": (1, 2, 3)}],
)
def test_an_image_of_another_shape_becomes_one_of_the_federations(tmp_path, change):
    root = hospital(tmp_path / "h", cat=2, dog=2)
    picture(root / "cat" / "00.png", **{"value": 0, **change})
    found = open_node_data(root, SCHEMA)
    assert found.train_images.shape == (4, 1, 28, 28)
    size = "x".join(map(str, change.get("size", (28, 28))[::-1]))
    assert found.report.sizes[size] >= 1


def test_an_image_of_more_than_8_bits(tmp_path):
    root = hospital(tmp_path / "h", cat=2)
    file = root / "cat" / "x.tiff"
    Image.fromarray(np.full((28, 28), 3000, np.uint16)).save(file)
    refused(root, "more than 8 bits", where=file)


def test_a_folder_without_images(tmp_path):
    root = tmp_path / "h"
    root.mkdir()
    refused(root, "holds no class folder")
    (root / "cat").mkdir()
    (root / "cat" / "scan.dcm").touch()
    refused(root, "cannot be read as an image", where=root / "cat" / "scan.dcm")
    (root / "cat" / "scan.dcm").unlink()
    refused(root, "holds no image (.apng, .bmp, .dcm, .dib")
    root = tmp_path / "parts"
    picture(root / "test" / "cat" / "0.png", 0)
    refused(root, "folder test but no folder train")
    picture(root / "train" / "cat" / "0.png", 0)
    (root / "test" / "cat" / "0.png").unlink()
    refused(root, "holds no image", where=root / "test")


def test_a_folder_that_may_not_be_read(tmp_path, monkeypatch):
    """Not silently a smaller data set. (Tests may run as root, who may read everything.)"""
    root = hospital(tmp_path / "h", cat=2, dog=2)
    (root / "dog" / "2024").mkdir()
    scan = os.scandir

    def closed(path):
        if Path(path) == root / "dog" / "2024":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", closed)
    refused(root, "cannot be read: Permission denied", where=root / "dog" / "2024")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train_labels": np.array([0, 1, 3, 0])}, "a label 3, but there are only 3 classes"),
        ({"train_labels": np.array([0, 1, -1, 0])}, "train_labels holds the label -1"),
        ({"train_labels": np.array([0, 1, 2])}, "4 train_images but 3 train_labels"),
        ({"train_images": images(4, (28, 28, 4))}, "images have 4 channels"),
        ({"train_images": images(4).astype(np.float32)}, "are float32"),
        ({"train_images": images(4)[:0], "train_labels": np.array([], int)}, "N > 0"),
        ({"test_images": images(2), "test_labels": np.array([0, 7])}, "a label 7"),
    ],
)
def test_an_npz_that_does_not_fit(tmp_path, change, words):
    made = {"train_images": images(4), "train_labels": np.array([0, 1, 2, 0]), **change}
    refused(npz(tmp_path / "h.npz", **made), words)


def test_an_npz_that_is_none(tmp_path):
    (tmp_path / "h.npz").write_bytes(b"PK\x03\x04")
    refused(tmp_path / "h.npz", "is damaged or no .npz file")
    path = npz(tmp_path / "test.npz", test_images=images(1), test_labels=np.array([0]))
    refused(path, "no array train_images")


def test_mended_data_are_taken(tmp_path):
    root = hospital(tmp_path / "h", cat=2)
    file = picture(root / "dog" / "x.png", 0, size=(30, 30))
    file.write_bytes(b"no image")
    refused(root, where=file)
    picture(file, 0)
    assert train_labels(root) == [0, 0, 1]


def test_a_link_to_where_one_is_already_does_not_count_images_twice(tmp_path):
    root = hospital(tmp_path / "data", cat=3, dog=3)
    (root / "cat" / "again").symlink_to(root / "cat")
    refused(root, "again", "one folder, one being a link")
