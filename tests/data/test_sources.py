"""Where images come from: every way in, and the sentence for every way it goes wrong."""

import http.client
import os
import shutil
import struct
import subprocess
import sys
import threading
import urllib.error
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torchvision.datasets.utils as torchvision_utils
from medmnist.info import INFO
from PIL import Image
from sklearn.datasets import load_digits

import fedadb_app
from fedadb_app.data.sources import cache_folder, open_dataset
from fedadb_app.errors import DataError

ROOT = Path(fedadb_app.__file__).parents[1]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache folder of this test's own; nobody downloads."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(torchvision_utils, "download_url", _no_download)
    open_dataset.cache_clear()
    yield tmp_path / "cache" / "fedadb"
    open_dataset.cache_clear()


def _no_download(*_args, **_kwargs):
    pytest.fail("a download was tried")


def reopen(*args, **kwargs):
    open_dataset.cache_clear()
    return open_dataset(*args, **kwargs)


def files_in(folder):
    """All files below a folder, locks aside."""
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock")


def refused(name, *words, data_dir="", download=False):
    """Check that opening fails with one sentence that holds the words, and leaves nothing."""
    before = files_in(cache_folder()) if cache_folder().is_dir() else []
    with pytest.raises(DataError) as caught:
        reopen(str(name), str(data_dir), download=download)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert str(word) in message
    assert (files_in(cache_folder()) if cache_folder().is_dir() else []) == before
    return message


def arrays(train=6, val=3, test=4, side=(28, 28), channels=(), classes=3, seed=0):
    """The arrays of a file in MedMNIST layout."""
    rng = np.random.default_rng(seed)
    made = {}
    for part, count in (("train", train), ("val", val), ("test", test)):
        made[f"{part}_images"] = rng.integers(0, 256, (count, *side, *channels), dtype=np.uint8)
        made[f"{part}_labels"] = (np.arange(count)[:, None] % classes).astype(np.uint8)
    return made


def save(path, made, how=np.savez):
    path.parent.mkdir(parents=True, exist_ok=True)
    how(path, **made)
    return path


# --- digits -----------------------------------------------------------------------------------


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


def test_data_are_prepared_once(cache, tmp_path):
    npz = save(tmp_path / "x.npz", arrays())
    for name in ("digits", str(npz)):
        reopen(name, "")
    before = {f: (f.stat().st_ino, f.stat().st_mtime_ns) for f in files_in(cache)}
    for name in ("digits", str(npz)):
        reopen(name, "")
    assert {f: (f.stat().st_ino, f.stat().st_mtime_ns) for f in files_in(cache)} == before


def test_writing_into_the_images_does_not_reach_the_other_workers(cache):
    data = open_dataset("digits", "")
    original = int(data.train_images[0, 0, 14, 14])
    data.train_images[0, 0, 14, 14] = 255 - original
    assert reopen("digits", "").train_images[0, 0, 14, 14] == original


# --- MedMNIST layout ----------------------------------------------------------------------------


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


@pytest.mark.parametrize("same_size", [True, False])
def test_a_replaced_file_is_prepared_anew(tmp_path, same_size):
    path = save(tmp_path / "x.npz", arrays(seed=0))
    old = open_dataset(str(path), "").train_images[:].copy()
    written = path.stat().st_mtime_ns
    made = arrays(seed=1, train=6 if same_size else 8)
    save(path, made)
    os.utime(path, ns=(written + 10**9, written + 10**9) if same_size else (written, written))
    new = reopen(str(path), "").train_images
    assert not np.array_equal(new, old)
    assert np.array_equal(new[:6, 0], made["train_images"][:6])


def test_two_files_of_one_name_are_two_data_sets(tmp_path):
    one, two = (save(tmp_path / d / "x.npz", arrays(seed=s)) for d, s in (("a", 0), ("b", 1)))
    os.utime(one, ns=(0, 0))
    os.utime(two, ns=(0, 0))
    assert one.stat().st_size == two.stat().st_size
    assert not np.array_equal(
        open_dataset(str(one), "").train_images, open_dataset(str(two), "").train_images
    )


@pytest.mark.parametrize("side", [(28, 28), (224, 224), (28, 224)])
def test_the_smallest_and_the_largest_side_are_allowed(tmp_path, side):
    path = save(tmp_path / "x.npz", arrays(side=side))
    assert open_dataset(str(path), "").image_shape == (1, *side)


# --- what is wrong with a file ------------------------------------------------------------------


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
        (put_images((20, 20)), ["20x20", "28", "224"]),
        (put_images((300, 300)), ["300x300", "28", "224"]),
        (put_images((28, 225)), ["28x225"]),
        (put_images((27, 28)), ["27x28"]),
        (put("train_labels", lambda y: y.astype(np.int64) - 1), ["train_labels", "-1"]),
        (put("test_labels", lambda y: y.astype(np.float32)), ["test_labels", "float32"]),
        (put("train_labels", lambda y: np.eye(3, dtype=int)[y[:, 0]]), ["train_labels", "(6, 3)"]),
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


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "digit",
        "PathMNIST",
        "pathmnist_32",
        "pathmnist_",
        "pathmnist_64_",
        "_64",
        "nodulemnist3d",  # volumes, not images
        "organmnist3d_64",
    ],
)
def test_unknown_names(name):
    refused(name, f'"{name}"', "digits", "pathmnist", "absolute path")
    refused(name, f'"{name}"', download=True)


@pytest.mark.parametrize("name", ["chestmnist", "chestmnist_64"])
def test_several_labels_an_image_are_refused(name, tmp_path):
    save(tmp_path / f"{name}.npz", arrays())
    refused(name, f'"{name}"', "several labels", data_dir=tmp_path)


@pytest.mark.parametrize("name", ["data/x.npz", "x.npz", "./folder"])
def test_relative_paths_are_refused(name, tmp_path, monkeypatch):
    # Flower's processes have working directories of their own.
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "x.npz", arrays())
    refused(name, f'"{name}"', "absolute path")


def test_a_path_to_nothing(tmp_path):
    for path in (tmp_path / "absent.npz", tmp_path / "absent"):
        refused(path, path, "no such file")
        refused(path, path, download=True)


def test_a_home_relative_path_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    save(tmp_path / "x.npz", arrays())
    assert len(open_dataset("~/x.npz", "").train_images) == 9


def test_a_client_does_not_download(tmp_path):
    refused("pathmnist", tmp_path / "pathmnist.npz", "fedadb data pathmnist", data_dir=tmp_path)
    refused("pathmnist_64", tmp_path / "pathmnist_64.npz", data_dir=tmp_path)
    refused("pathmnist", cache_folder() / "pathmnist.npz")


# --- MedMNIST flags -----------------------------------------------------------------------------


def test_a_flag_is_read_from_data_dir_with_its_class_names(tmp_path):
    made = arrays(channels=(3,), classes=2)
    save(tmp_path / "pathmnist.npz", made)
    data = open_dataset("pathmnist", str(tmp_path))
    assert data.num_classes == 9
    assert data.class_names[0] == "adipose"
    assert data.class_names[8] == "colorectal adenocarcinoma epithelium"
    assert data.train_images.shape == (9, 3, 28, 28)
    assert data.name == "pathmnist"


def test_a_flag_with_a_size(tmp_path):
    save(tmp_path / "pathmnist_64.npz", arrays(side=(64, 64), channels=(3,)))
    data = open_dataset("pathmnist_64", str(tmp_path))
    assert data.image_shape == (3, 64, 64)
    assert data.num_classes == 9


def test_a_flag_and_the_path_of_its_file_have_their_own_class_names(tmp_path):
    path = save(tmp_path / "pathmnist.npz", arrays())
    assert open_dataset(str(path), "").class_names == ("0", "1", "2")
    assert open_dataset("pathmnist", str(tmp_path)).num_classes == 9
    assert reopen(str(path), "").class_names == ("0", "1", "2")


def test_a_label_beyond_the_classes(tmp_path):
    made = arrays()
    made["test_labels"][1] = 9
    path = save(tmp_path / "pathmnist.npz", made)
    refused("pathmnist", path, "label 9", "9 classes", data_dir=tmp_path)
    made["test_labels"][1] = 8
    save(path, made)
    assert reopen("pathmnist", str(tmp_path)).test_labels.max() == 8


# --- downloads ----------------------------------------------------------------------------------


def downloader(monkeypatch, action):
    """Put `action(target)` in the place of torchvision's download; return the calls."""
    calls = []

    def download_url(url, root, filename=None, md5=None, max_redirect_hops=3):
        calls.append((url, filename, md5))
        action(Path(root) / filename)

    monkeypatch.setattr(torchvision_utils, "download_url", download_url)
    return calls


@pytest.mark.parametrize(("name", "suffix"), [("pathmnist", ""), ("pathmnist_128", "_128")])
@pytest.mark.parametrize("in_cache", [True, False])
def test_a_download_is_kept(tmp_path, monkeypatch, name, suffix, in_cache):
    folder = cache_folder() if in_cache else tmp_path / "not" / "yet"
    calls = downloader(monkeypatch, lambda target: save(target, arrays()))
    data_dir = "" if in_cache else str(folder)
    assert reopen(name, data_dir, download=True).num_classes == 9
    info = INFO["pathmnist"]
    assert calls == [(info[f"url{suffix}"], f"{name}.npz", info[f"MD5{suffix}"])]
    assert (folder / f"{name}.npz").is_file()
    # Now it is there, for the server as for the clients.
    assert reopen(name, data_dir, download=True).num_classes == 9
    assert reopen(name, data_dir).num_classes == 9
    assert len(calls) == 1


@pytest.mark.parametrize(
    "error",
    [
        urllib.error.URLError("no route to host"),
        RuntimeError("File not found or corrupted."),  # torchvision: wrong checksum
        http.client.IncompleteRead(b"", 100),
        TimeoutError("timed out"),
        None,  # reports success, but there is no file
    ],
)
def test_a_failed_download_leaves_nothing(tmp_path, monkeypatch, error):
    folder = tmp_path / "data"

    def fail(target):
        if error is not None:
            target.write_bytes(b"half a file")
            raise error

    calls = downloader(monkeypatch, fail)
    refused(
        "pathmnist", '"pathmnist"', folder / "pathmnist.npz", "by hand", data_dir=folder, download=1
    )
    assert len(calls) == 1
    assert files_in(folder) == []
    assert [p for p in folder.iterdir() if p.is_dir()] == []
    # And the next try is a fresh one.
    downloader(monkeypatch, lambda target: save(target, arrays()))
    assert reopen("pathmnist", str(folder), download=True).num_classes == 9


def test_a_file_appears_only_when_complete(tmp_path, monkeypatch):
    def check(target):
        assert not (tmp_path / "pathmnist.npz").exists()
        save(target, arrays())
        assert not (tmp_path / "pathmnist.npz").exists()

    downloader(monkeypatch, check)
    open_dataset("pathmnist", str(tmp_path), download=True)
    assert [f.name for f in files_in(tmp_path) if f.parent == tmp_path] == ["pathmnist.npz"]


def test_two_at_once_download_once(tmp_path, monkeypatch):
    started, second_waits = threading.Barrier(2), threading.Event()

    def slow(target):
        second_waits.wait(0.5)  # long enough for the other to look for the file
        save(target, arrays())

    calls = downloader(monkeypatch, slow)
    results = []

    def work():
        started.wait()
        results.append(open_dataset("pathmnist", str(tmp_path), download=True).num_classes)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [9, 9]
    assert len(calls) == 1


def test_a_download_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "data"
    downloader(monkeypatch, lambda target: save(target, arrays()))
    refused("pathmnist", folder / "pathmnist.npz", data_dir=folder, download=True)


# --- folders of class folders -------------------------------------------------------------------


def picture(path, value, *, mode="L", size=(28, 28)):
    """Save one plain image; size is (width, height), as in Pillow."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)
    return path


def plain_folder(root, count=6, **kwargs):
    for label, name in enumerate(("cat", "dog")):
        for i in range(count):
            picture(root / name / f"{i}.png", 100 * label + i, **kwargs)
    return root


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
        ("RGBA", (1, 20, 255, 9), [1, 20, 255]),
        ("L", 77, [77]),
        ("LA", (77, 3), [77]),
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
    refused(root, root, "no test image")
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


@pytest.mark.parametrize("size", [(20, 20), (300, 300), (28, 27)])
def test_images_of_a_wrong_size(tmp_path, size):
    root = plain_folder(tmp_path / "x", size=size)
    refused(root, root / "cat" / "0.png", f"{size[1]}x{size[0]}", "28", "224")


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


# --- several processes, full and unwritable disks -------------------------------------------------


WITHOUT_TORCH = f"""
import sys, types
sys.path.insert(0, {str(ROOT)!r})
# The package itself would import torch, which takes seconds, and which sources.py does not need.
package = types.ModuleType("fedadb_app.data")
package.__path__ = [{str(ROOT / "fedadb_app" / "data")!r}]
sys.modules["fedadb_app.data"] = package
"""


def in_subprocess(code, *args, prefix=()):
    """Start Python with this project importable, and this test's cache."""
    command = [*prefix, sys.executable, "-c", WITHOUT_TORCH + code, *map(str, args)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ
    )


def output_of(process):
    try:
        return process.communicate(timeout=60)[0]
    finally:
        process.kill()


WATCHED = """
import os, sys, time, traceback
from pathlib import Path
import numpy as np
from fedadb_app.data.sources import open_dataset, cache_folder

me, start, *names = sys.argv[1:]
prepared = cache_folder() / "prepared"
busy, seen = False, 0

def watch(event, args):
    # At each file operation of the preparation: what claims to be ready must be complete.
    global busy, seen
    if busy or not (event == "open" or event.startswith(("os.", "shutil."))):
        return
    busy = True
    try:
        for meta in prepared.glob("*/meta.json"):
            for part in ("train", "test"):
                images = np.load(meta.parent / f"{part}_images.npy", mmap_mode="r")
                assert len(np.load(meta.parent / f"{part}_labels.npy")) == len(images)
                assert (images[-1] != 0).any()
            assert meta.read_text().endswith("}")
            seen += 1
    except Exception:
        traceback.print_exc()
        os._exit(1)  # an exception might be taken for a failed file operation and be retried
    busy = False

(Path(start) / me).touch()
while len(list(Path(start).iterdir())) < 2:
    time.sleep(0.01)
sys.addaudithook(watch)
for name in names:
    data = open_dataset(name, "")
    print(name, len(data.train_images), data.train_images.sum(), data.train_labels.sum())
assert seen > 0
"""


def test_two_processes_prepare_at_once(tmp_path):
    start = tmp_path / "start"
    start.mkdir()
    files = [save(tmp_path / f"{s}.npz", arrays(train=2000, seed=s)) for s in range(3)]
    names = list(map(str, files))
    both = [in_subprocess(WATCHED, me, start, *names) for me in ("one", "two")]
    outputs = [output_of(process) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    expected = ""
    for name in names:
        data = open_dataset(name, "")
        images, labels = data.train_images.sum(), data.train_labels.sum()
        expected += f"{name} {len(data.train_images)} {images} {labels}\n"
    assert outputs == [expected, expected]
    # One prepared folder a source; no scratch folder is left.
    assert len([p for p in (cache_folder() / "prepared").iterdir() if p.is_dir()]) == 3


@pytest.mark.parametrize("below", ["", "fedadb", "fedadb/prepared"])
def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch, below):
    base = tmp_path / "blocked"
    blocker = base / below
    blocker.parent.mkdir(parents=True, exist_ok=True)
    blocker.write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(base))
    with pytest.raises(DataError) as caught:
        reopen("digits", "")
    message = str(caught.value)
    assert "\n" not in message
    assert str(base / "fedadb" / "prepared") in message


ON_A_FULL_DISK = """
import sys
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import DataError
try:
    open_dataset(sys.argv[1], "")
except DataError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize("kind", ["npz", "folder"])
def test_a_full_disk_is_a_sentence(tmp_path, kind):
    # A disk of one megabyte, in a mount namespace of its own, where the system allows that.
    small = tmp_path / "cache"
    small.mkdir()
    mount = f'mount -t tmpfs -o size=1m tmpfs "{small}" && exec "$@"'
    prefix = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], check=False).returncode:
        pytest.skip("no mount namespaces here")
    if kind == "npz":
        source = save(tmp_path / "x.npz", arrays(train=2000))
    else:
        source = plain_folder(tmp_path / "x", count=12, size=(224, 224))
    process = in_subprocess(ON_A_FULL_DISK, source, prefix=prefix)
    output = output_of(process)
    assert process.returncode == 0, output
    assert output.startswith("refused:")
    assert "No space left" in output
    assert str(small) in output
