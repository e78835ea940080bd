"""Files in MedMNIST layout: the sentence for everything that can be wrong with one."""

import os
import struct
import zipfile

import numpy as np
import pytest
from image_files import arrays, refused, reopen, save

pytestmark = pytest.mark.usefixtures("cache")


def without(*names):
    return lambda made: [made.pop(name) for name in names]


def put(name, change):
    return lambda made: made.update({name: change(made[name])})


def put_images(shape):
    return lambda made: made.update(
        {f"{part}_images": np.zeros((count, *shape), np.uint8) for part, count in PARTS.items()}
    )


PARTS = {"train": 6, "val": 3, "test": 4}


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (without("train_images"), ["train_images"]),
        (without("test_images"), ["test_images"]),
        (without("train_labels"), ["train_labels"]),
        (without("test_labels"), ["test_labels"]),
        (without("val_labels"), ["val_labels"]),
        (put("train_images", lambda x: x[:5]), ["5 train_images", "6 train_labels"]),
        (put("test_images", lambda x: np.concatenate([x, x])), ["8 test_images", "4 test_labels"]),
        (put("train_images", lambda x: x / np.float32(255)), ["train_images", "uint8", "float32"]),
        (put("test_images", lambda x: x.astype(np.int64)), ["test_images", "uint8", "int64"]),
        (put("val_images", lambda x: x[:, 0]), ["val_images", "(3, 28)"]),
        (put("train_images", np.asfortranarray), ["train_images", "Fortran order"]),
        (put_images((28, 28, 4)), ["4 channels"]),
        (put_images((28, 28, 2)), ["2 channels"]),
        (put_images((20, 20)), ["20x20", "28", "1024"]),
        (put_images((1025, 28)), ["1025x28", "28", "1024"]),
        (put_images((28, 1025)), ["28x1025"]),
        (put_images((27, 28)), ["27x28"]),
        (put("train_labels", lambda y: y.astype(np.int64) - 1), ["train_labels", "-1"]),
        (put("test_labels", lambda y: y.astype(np.float32)), ["test_labels", "float32"]),
        (
            put("train_labels", lambda y: 1 - np.eye(3, dtype=int)[y[:, 0]]),
            ["train_labels", "(6, 3)"],
        ),
        (put("train_labels", lambda y: y[:0]), ["train_labels", "(0,)"]),
        (put("train_images", lambda x: x[:0]), ["0 train_images", "6 train_labels"]),
        (put("test_images", lambda x: np.zeros((4, 28, 28, 3), np.uint8)), ["(1, 28, 28)", "test"]),
        (put("test_images", lambda x: np.zeros((4, 28, 32), np.uint8)), ["(1, 28, 32)", "test"]),
        (put("val_images", lambda x: np.zeros((3, 32, 32), np.uint8)), ["(1, 32, 32)", "val"]),
        (put("train_labels", lambda y: np.array([[0]] * 6, object)), ["bject"]),
        (put("train_images", lambda x: np.array([None] * 6, object)), ["train_images", "object"]),
    ],
)
def test_unusable_arrays(tmp_path, damage, words):
    made = arrays()
    damage(made)
    path = save(tmp_path / "broken.npz", made)
    refused(path, path, *words)


def test_empty_parts(tmp_path):
    path = save(tmp_path / "x.npz", arrays(test=0))
    refused(path, path, "test")


def test_surplus_images_of_one_part_do_not_make_up_for_another(tmp_path):
    # In total 9 images and 9 labels, but from the sixth on each would get the next one's label.
    made = arrays()
    made["train_images"], made["val_images"] = made["train_images"][:5], np.zeros((4, 28, 28), "u1")
    path = save(tmp_path / "x.npz", made)
    refused(path, path, "5 train_images", "6 train_labels")


def test_a_pickle_in_the_file_is_not_loaded(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    made = arrays()
    made["train_labels"] = np.array([Trap()] * 6, object)
    path = save(tmp_path / "x.npz", made)
    refused(path, path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("how", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file(tmp_path, share, how):
    path = save(tmp_path / "x.npz", arrays(), how)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    refused(path, path, "damaged")


def test_not_a_zip_file(tmp_path):
    path = tmp_path / "x.npz"
    path.write_text("<html>404</html>")
    refused(path, path, "damaged or no .npz file")


@pytest.mark.parametrize("how", [np.savez, np.savez_compressed])
def test_one_changed_pixel_is_noticed(tmp_path, how):
    made = arrays(train=400, val=0)
    del made["val_images"], made["val_labels"]
    path = save(tmp_path / "x.npz", made, how)
    raw = bytearray(path.read_bytes())
    raw[2000] ^= 1  # within train_images, the first member
    path.write_bytes(raw)
    refused(path, path, "damaged")


def replace_in_header(raw, old, new):
    assert raw.count(old) >= 1
    return raw.replace(old, new)


def test_a_damaged_array_header(tmp_path):
    # An archive with right checksums whose array header is no Python literal.
    path = save(tmp_path / "x.npz", arrays())
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    broken = replace_in_header(members["train_images.npy"], b"(6, 28, 28), }", b"((((((((((((((")
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, broken if name == "train_images.npy" else content)
    refused(path, path, "damaged")


def test_a_compression_python_cannot_read(tmp_path):
    # Windows packs large archives with Deflate64, method 9.
    path = save(tmp_path / "x.npz", arrays(), np.savez_compressed)
    raw = path.read_bytes()
    for signature, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        position = raw.index(signature) + offset
        assert raw[position : position + 2] == struct.pack("<H", 8)
        raw = raw[:position] + struct.pack("<H", 9) + raw[position + 2 :]
    path.write_bytes(raw)
    refused(path, path)


def test_a_mended_file_opens_after_a_failure(tmp_path):
    made = arrays()
    path = save(tmp_path / "x.npz", made | {"test_images": np.zeros((4, 28, 28, 4), np.uint8)})
    refused(path, path)
    save(path, made)
    assert reopen(str(path), "").train_images.shape == (9, 1, 28, 28)
