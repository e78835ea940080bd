"""Images on disk as users have them, and what opening them gives or is refused with."""

import numpy as np
import pytest
from PIL import Image

from fedadb_app.data.prepared import cache_folder
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import FedADBError


def reopen(*args, **kwargs):
    open_dataset.cache_clear()
    return open_dataset(*args, **kwargs)


def files_in(folder):
    """All files below a folder, locks aside."""
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock")


def refused(name, *words, data_dir="", download=False):
    """Check that opening fails with one sentence that holds the words, and leaves nothing."""
    before = files_in(cache_folder()) if cache_folder().is_dir() else []
    with pytest.raises(FedADBError) as caught:
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
