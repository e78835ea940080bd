"""Small data, a fake Flower, and `fedadb reproduce` called on them."""

import numpy as np
import pytest
from helpers import REPOSITORY
from reproduction_helpers import FakeFlower
from typer.testing import CliRunner

from fedadb_app.cli.main import main


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """PathMNIST in its official format, small."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 1000), ("val", 360), ("test", 90)):
        labels = np.arange(count) % 9
        images = rng.integers(0, 100, (count, 28, 28, 3), np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[3 * label : 3 * label + 4] += 100
        arrays |= {f"{part}_images": images, f"{part}_labels": labels[:, None]}
    np.savez(folder / "pathmnist.npz", **arrays)
    return folder


@pytest.fixture
def flower(monkeypatch):
    return FakeFlower(monkeypatch)


@pytest.fixture
def call(tmp_path, data):
    """`fedadb reproduce …` on those data."""

    def invoke(*arguments, output=tmp_path / "out"):
        fixed = ["--app", str(REPOSITORY), "--output", str(output), "-c", f'data-dir="{data}"']
        return CliRunner().invoke(main, ["reproduce", *arguments, *fixed])

    return invoke
