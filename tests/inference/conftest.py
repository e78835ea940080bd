"""Runs whose models are used, each in a folder of its own with nothing beside it."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import serve
from PIL import Image
from typer.testing import CliRunner

from fedadb_app.cli.main import main
from fedadb_app.data.sources import open_dataset


def taken_away(run: Path, target: Path) -> Path:
    """Copy a run's folder to another machine: no data set, no prepared copy is there."""
    shutil.copytree(run, target)
    return target


def command(*words):
    result = CliRunner().invoke(main, list(map(str, words)), terminal_width=500)
    return result.exit_code, result.output


def finished_run(folder, **changes):
    """Run two clients for a round or so."""
    values = {
        **{"strategy": "fedavg", "partition": "iid", "device": "cpu", "model": "lenet"},
        **{"num-server-rounds": 1, "local-epochs": 1, "batch-size": 16, "learning-rate": 0.05},
        **{"output-dir": str(folder), "run-name": "run"},
    }
    serve({**values, **changes})
    return folder / "run"


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory):
    return finished_run(tmp_path_factory.mktemp("digits"), dataset="digits")


@pytest.fixture(scope="session")
def digits_test(tmp_path_factory):
    """The test part of the digits as files, below a folder for each class."""
    root = tmp_path_factory.mktemp("digits-test")
    data = open_dataset("digits", "")
    for i, (image, label) in enumerate(zip(data.test_images, data.test_labels, strict=True)):
        folder = root / str(label)
        folder.mkdir(exist_ok=True)
        Image.fromarray(np.asarray(image[0])).save(folder / f"{i:04}.png")
    return root


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Another machine: its cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty-cache"))
    open_dataset.cache_clear()
    yield tmp_path / "elsewhere"
    open_dataset.cache_clear()
