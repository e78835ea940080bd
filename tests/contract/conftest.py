"""A small colour data set, and federations of any method on it; one run answers many questions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from contract.settings import QUICK
from helpers import Federation, make_federation


@pytest.fixture(scope="session")
def colour_images(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of three classes of bright, dark and striped RGB images, in MedMNIST layout."""
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 3
    base = np.stack(
        [
            np.full((28, 28, 3), 200),
            np.full((28, 28, 3), 50),
            np.tile(np.array([0, 255])[:, None, None], (14, 28, 3)),
        ]
    )
    images = np.clip(base[labels] + rng.normal(0, 30, (80, 28, 28, 3)), 0, 255).astype(np.uint8)
    path = tmp_path_factory.mktemp("data") / "colour.npz"
    np.savez(
        path,
        train_images=images[:60],
        train_labels=labels[:60, None],
        test_images=images[60:],
        test_labels=labels[60:, None],
    )
    return str(path)


@pytest.fixture(scope="session")
def federation(
    tmp_path_factory: pytest.TempPathFactory, colour_images: str
) -> Callable[..., Federation]:
    """Make a federation of one method, LeNet unless told otherwise; each in its own folder."""

    def make(name: str, clients: int = 3, **values: Any) -> Federation:
        settings = {**QUICK, "strategy": name, "model": "lenet", "dataset": colour_images}
        settings |= {key.replace("_", "-"): value for key, value in values.items()}
        settings["output-dir"] = str(tmp_path_factory.mktemp("runs"))
        return make_federation(settings, clients)

    return make


@pytest.fixture(scope="session")
def finished(federation: Callable[..., Federation]) -> Callable[..., Federation]:
    """Run a federation to its end; the same one is run once, and must not be changed."""
    runs: dict[Any, Federation] = {}

    def run(name: str, clients: int = 3, **values: Any) -> Federation:
        key = (name, clients, frozenset(values.items()))
        if key not in runs:
            made = federation(name, clients, **values)
            made.run()
            runs[key] = made
        return runs[key]

    return run
