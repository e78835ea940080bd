"""Folders of class folders: which image has which label, and what is refused."""

import numpy as np
import pytest
from image_files import picture, plain_folder, refused, reopen
from PIL import Image

from fedadb_app.data.sources import open_dataset

pytestmark = pytest.mark.usefixtures("cache")


def values_of(images):
    assert (images == images[:, :, :1, :1]).all()
    return images[:, 0, 0, 0].tolist()


def test_a_folder_of_class_folders_holds_every_fifth_image_out(tmp_path):
    root = plain_folder(tmp_path / "pets", count=11, size=(40, 30))
    (root / "notes.txt").write_text("not an image")
    (root / "cat" / "notes.txt").write_text("not an image")
    (root / ".hidden").mkdir()
    data = open_dataset(str(root), "")
    assert data.class_names == ("cat", "dog")
    assert data.image_shape == (1, 30, 40)  # height before width
    assert isinstance(data.train_images, np.memmap)
    # In the order of names: 0 1 10 2 (3) 4 5 6 7 (8) 9.
    train, test = [0, 1, 10, 2, 4, 5, 6, 7, 9], [3, 8]
    assert values_of(data.train_images) == train + [100 + v for v in train]
    assert values_of(data.test_images) == test + [100 + v for v in test]
    assert data.train_labels.tolist() == [0] * 9 + [1] * 9
    assert data.test_labels.tolist() == [0, 0, 1, 1]


def test_a_folder_with_train_and_test_parts(tmp_path):
    for part, name, value in [
        ("train", "b", 1),
        ("train", "a", 2),
        ("train", "c", 3),
        ("test", "c", 4),
        ("test", "a", 5),
        ("test", "c", 6),
    ]:
        picture(tmp_path / "x" / part / name / f"{value}.PNG", value)
    data = open_dataset(str(tmp_path / "x"), "")
    assert data.class_names == ("a", "b", "c")
    assert values_of(data.train_images) == [2, 1, 3]
    assert data.train_labels.tolist() == [0, 1, 2]
    assert values_of(data.test_images) == [5, 4, 6]
    assert data.test_labels.tolist() == [0, 2, 2]


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [
        ("RGB", (1, 20, 255), [1, 20, 255]),
        ("RGBA", (10, 20, 255, 51), [2, 4, 51]),
        ("L", 77, [77]),
        ("LA", (77, 255), [77]),
        ("1", 1, [255]),
    ],
)
def test_channels_of_a_folder(tmp_path, mode, value, expected):
    root = tmp_path / "x"
    for part in ("train", "test"):
        for name in ("a", "b"):
            picture(root / part / name / "1.png", value, mode=mode, size=(30, 29))
    images = open_dataset(str(root), "").train_images
    assert images.shape == (2, len(expected), 29, 30)
    for channel, level in enumerate(expected):
        assert (images[0, channel] == level).all()


@pytest.mark.parametrize(("count", "held_out"), [(2, 1), (4, 1), (5, 1), (9, 1), (10, 2)])
def test_every_class_of_a_plain_folder_has_a_test_image(tmp_path, count, held_out):
    data = open_dataset(str(plain_folder(tmp_path / "x", count=count)), "")
    assert np.bincount(data.test_labels).tolist() == [held_out] * data.num_classes
    assert np.bincount(data.train_labels).tolist() == [count - held_out] * data.num_classes


def test_one_class_is_too_few(tmp_path):
    picture(tmp_path / "x" / "only" / "1.png", 1)
    picture(tmp_path / "x" / "only" / "2.png", 2)
    refused(tmp_path / "x", "one class only")


def test_an_added_image_is_seen(tmp_path):
    root = plain_folder(tmp_path / "x")
    assert len(open_dataset(str(root), "").train_images) == 10
    picture(root / "cat" / "7.png", 9)
    assert len(reopen(str(root), "").train_images) == 11


def test_a_link_moved_to_another_class_is_seen(tmp_path):
    # Class folders are often made of links into one pool; a moved link changes labels only.
    pool = [picture(tmp_path / "pool" / f"{i}.png", i) for i in range(4)]
    root = tmp_path / "x"
    for part in ("train", "test"):
        for name, members in (("a", pool[:2]), ("b", pool[2:])):
            (root / part / name).mkdir(parents=True)
            for file in members:
                (root / part / name / file.name).symlink_to(file)
    assert open_dataset(str(root), "").train_labels.tolist() == [0, 0, 1, 1]
    (root / "train" / "a" / "1.png").rename(root / "train" / "b" / "1.png")
    data = reopen(str(root), "")
    assert values_of(data.train_images) == [0, 1, 2, 3]
    assert data.train_labels.tolist() == [0, 1, 1, 1]


def test_folders_that_lack_something(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(empty, empty, "no class folder")

    root = plain_folder(tmp_path / "one_empty_class")
    (root / "eel").mkdir()
    refused(root, root / "eel", "no image")

    root = plain_folder(tmp_path / "few", count=1)
    refused(root, "needs two images")

    root = tmp_path / "only_train"
    picture(root / "train" / "a" / "1.png", 0)
    refused(root, root, "not both train and test")
    (root / "test").mkdir()
    refused(root, root / "test")
    (root / "test" / "a").mkdir()
    refused(root, root / "test", "holds no image")
    picture(root / "test" / "z" / "1.png", 0)
    refused(root, root / "test" / "z", "class")


def test_an_empty_class_in_the_test_part_alone_is_allowed(tmp_path):
    for part, name in (("train", "a"), ("train", "b"), ("test", "a")):
        picture(tmp_path / "x" / part / name / "1.png", 0)
    (tmp_path / "x" / "test" / "b").mkdir()
    data = open_dataset(str(tmp_path / "x"), "")
    assert data.num_classes == 2
    assert data.test_labels.tolist() == [0]


@pytest.mark.parametrize("keep", [0, 20, 60, "text"])
def test_an_unreadable_image_is_named(tmp_path, keep):
    root = plain_folder(tmp_path / "x", size=(200, 200))
    file = root / "dog" / "2.png"
    file.write_bytes(b"not an image at all" if keep == "text" else file.read_bytes()[:keep])
    refused(root, file, "cannot be read")


def test_a_png_with_a_short_header_is_named(tmp_path):
    root = plain_folder(tmp_path / "x")
    file = root / "dog" / "2.png"
    raw = file.read_bytes()
    file.write_bytes(raw[:11] + b"\x04" + raw[12:])  # the length of IHDR, 13 by the standard
    refused(root, file, "cannot be read")


def test_a_link_to_nothing_is_named(tmp_path):
    root = plain_folder(tmp_path / "x")
    (root / "dog" / "9.png").symlink_to(tmp_path / "gone.png")
    refused(root, root / "dog" / "9.png", "cannot be read")


def test_an_image_too_large_for_pillow_is_named(tmp_path, monkeypatch):
    root = plain_folder(tmp_path / "x")
    file = picture(root / "dog" / "2.png", 0, size=(1000, 1000))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    refused(root, file, "cannot be read")


@pytest.mark.parametrize("size", [(20, 20), (1025, 28), (28, 27)])
def test_images_of_a_wrong_size(tmp_path, size):
    root = plain_folder(tmp_path / "x", size=size)
    refused(root, root / "cat" / "0.png", f"{size[1]}x{size[0]}", "28", "1024")


def test_images_that_differ(tmp_path):
    root = plain_folder(tmp_path / "sizes")
    picture(root / "dog" / "3.png", 0, size=(28, 32))
    refused(root, root / "dog" / "3.png", "(1, 32, 28)", "(1, 28, 28)")
    root = plain_folder(tmp_path / "channels")
    picture(root / "dog" / "3.png", (0, 0, 0), mode="RGB")
    refused(root, root / "dog" / "3.png", "(3, 28, 28)", "(1, 28, 28)")
    # Within each part alike, but not between them.
    root = tmp_path / "parts"
    picture(root / "train" / "a" / "1.png", 0)
    picture(root / "test" / "a" / "1.png", 0, size=(32, 32))
    refused(root, root, "(1, 28, 28)", "(1, 32, 32)")


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_more_than_8_bits_are_refused_and_not_cut_off(tmp_path, mode):
    # An X-ray of 12 or 16 bits would turn all white.
    dtype = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
    for file in (tmp_path / "x" / part / "a" / "1.tiff" for part in ("train", "test")):
        file.parent.mkdir(parents=True)
        Image.fromarray(np.full((28, 28), 3000, dtype)).save(file)
        with Image.open(file) as image:
            assert image.mode == mode
    refused(tmp_path / "x", tmp_path / "x" / "train" / "a" / "1.tiff", "more than 8 bits")
