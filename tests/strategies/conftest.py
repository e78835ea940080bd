"""Federations of hospitals, and noise that a test can draw again."""

import itertools

import numpy as np
import pytest
from helpers import federation_of_nodes, own_data
from own_data_cases import HOSPITALS

import strategies.central_privacy
import strategies.local_privacy


@pytest.fixture
def repeatable(monkeypatch):
    """Noise that a test can draw again: call it before each run."""

    def start(seed: int = 0) -> None:
        uses = itertools.count()
        for module in (strategies.central_privacy, strategies.local_privacy):
            monkeypatch.setattr(
                module, "secret_generator", lambda: np.random.default_rng([seed, next(uses)])
            )

    return start


@pytest.fixture
def hospital(tmp_path):
    """Make the node config of a SuperNode with so many images of its own."""
    return lambda count=7: own_data(tmp_path / f"{count}.npz", [0, 9] * count)


@pytest.fixture
def nodes(tmp_path):
    """Node id -> node config of the three hospitals."""
    return {
        100 + k: own_data(tmp_path / f"hospital-{k}.npz", labels, seed=k)
        for k, labels in enumerate(HOSPITALS)
    }


@pytest.fixture
def hospitals(federation, nodes):
    """Build a federation of them: `hospitals(strategy="feddyn")`."""

    def build(**changes):
        named = {key.replace("_", "-"): value for key, value in changes.items()}
        return federation(nodes=dict(nodes), **{**federation_of_nodes(), "model": "lenet", **named})

    return build
