"""SVHN, CIFAR, CINIC-10 and PACS in their real formats on disk, small, and how they open."""

import pickle
from hashlib import md5

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from torchvision.datasets import CIFAR10, CIFAR100, SVHN

from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import DataError


def make_cifar(home, monkeypatch, kind=CIFAR10, per_file=None):
    """Write CIFAR batches as the authors' Python archive has them; return images and labels.

    A file holds an image of each class, or of `per_file` of them.
    """
    rng = np.random.default_rng(0)
    folder = home / kind.base_folder
    folder.mkdir(parents=True, exist_ok=True)
    key = "labels" if kind is CIFAR10 else "fine_labels"
    classes = 10 if kind is CIFAR10 else 100
    made = {}

    def write(file, content):
        (folder / file).write_bytes(pickle.dumps(content))
        return [file, md5((folder / file).read_bytes()).hexdigest()]

    for part in ("train_list", "test_list"):
        images, labels, listed = [], [], []
        for file, _ in getattr(kind, part):
            wanted = rng.permutation(classes)[:per_file].tolist()
            rows = rng.integers(0, 256, (len(wanted), 3 * 32 * 32), dtype=np.uint8)
            listed.append(write(file, {"data": rows, key: wanted}))
            images.append(rows.reshape(-1, 3, 32, 32))
            labels += wanted
        monkeypatch.setattr(kind, part, listed)
        made[part.removesuffix("_list")] = np.concatenate(images), np.array(labels, np.int64)
    names = [f"class {c}" for c in range(classes)]
    file, checksum = write(kind.meta["filename"], {kind.meta["key"]: names})
    monkeypatch.setattr(kind, "meta", {**kind.meta, "filename": file, "md5": checksum})
    return made, names


def make_svhn(home, monkeypatch):
    rng = np.random.default_rng(0)
    home.mkdir(parents=True, exist_ok=True)
    made, listed = {}, dict(SVHN.split_list)
    for part in ("train", "test"):
        images = rng.integers(0, 256, (32, 32, 3, 20), dtype=np.uint8)
        labels = np.repeat(np.arange(1, 11, dtype=np.uint8), 2)[:, None]  # 10 stands for 0
        url, file, _ = listed[part]
        savemat(home / file, {"X": images, "y": labels})
        listed[part] = [url, file, md5((home / file).read_bytes()).hexdigest()]
        made[part] = images.transpose(3, 2, 0, 1), labels[:, 0].astype(np.int64) % 10
    monkeypatch.setattr(SVHN, "split_list", listed)
    return made, [str(digit) for digit in range(10)]


MAKERS = {
    "cifar10": make_cifar,
    "cifar100": lambda home, patch: make_cifar(home, patch, CIFAR100),
    "svhn": make_svhn,
}


def save_image(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def make_cinic10(home, classes=("airplane", "automobile", "bird")):
    rng = np.random.default_rng(0)
    made = {}
    for part, count in (("train", 3), ("valid", 2), ("test", 2)):
        made[part] = rng.integers(0, 256, (len(classes) * count, 32, 32, 3), dtype=np.uint8)
        for position, pixels in enumerate(made[part]):
            label, number = divmod(position, count)
            save_image(home / "cinic10" / part / classes[label] / f"{number}.png", pixels)
    return made, tuple(classes)


PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar")
DOMAINS = ["art_painting", "cartoon", "photo", "sketch"]


def make_pacs(home, images=20, classes=PACS_CLASSES):
    """Every image is one colour, which says its domain and its class; one more dog a domain."""
    for d, domain in enumerate(DOMAINS):
        for c, name in enumerate(classes):
            for number in range(images + 5 * d * (c == 0)):
                pixels = np.full((227, 227, 3), (60 * d, 60 * c, 128), np.uint8)
                save_image(home / "pacs" / domain / name / f"pic_{number:03}.png", pixels)


def reopen(name, home, download=False):
    open_dataset.cache_clear()
    return open_dataset(name, str(home), download=download)


def refused(name, home, *words, download=False):
    with pytest.raises(DataError) as caught:
        reopen(name, home, download)
    message = str(caught.value)
    assert "\n" not in message
    for word in (f'"{name}"', *words):
        assert str(word) in message
    assert not list(home.parent.glob("cache/fedadb/prepared/*/meta.json"))


def same(array, expected):
    assert array.dtype == expected.dtype
    assert np.array_equal(array, expected)
