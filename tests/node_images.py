"""A node's own images on disk, and the federation that they have to fit."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedadb_app.config import RunConfig
from fedadb_app.data.arrays import ImageSchema
from fedadb_app.data.sources import open_node_data
from fedadb_app.errors import DataError

SCHEMA = ImageSchema(("cat", "dog", "eel"), (1, 28, 28))
CPU = torch.device("cpu")
NODES = {"dataset": "nodes", "classes": "cat,dog,eel", "image_shape": "1x28x28"}
CLIENTS = RunConfig(**NODES, evaluate="clients")


def picture(path: Path, value, size=(28, 28), mode="L") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)
    return path


def hospital(root: Path, **classes: int) -> Path:
    """A folder with so many images of each class; the grey value says which is which."""
    for position, (name, count) in enumerate(classes.items()):
        for i in range(count):
            picture(root / name / f"{i:02}.png", 100 * position + i)
    return root


def npz(path: Path, **arrays) -> Path:
    np.savez(path, **arrays)
    return path


def images(count: int, shape=(28, 28)) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, *shape), np.uint8)


def refused(path: Path, *words, where=None) -> None:
    """Check that a node refuses with one sentence that names the file."""
    with pytest.raises(DataError) as caught:
        open_node_data(path, SCHEMA)
    said = str(caught.value)
    assert "\n" not in said
    assert all(str(word) in said for word in (where or path, *words)), said


def train_labels(path: Path, schema: ImageSchema = SCHEMA) -> list[int]:
    return open_node_data(path, schema).train_labels.tolist()
