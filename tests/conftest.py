"""Shared fixtures."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from faults import SUPERLINK
from flwr.supercore.task_identity import TaskIdentity
from helpers import Federation, make_federation
from hypothesis import settings as hypothesis_settings

import strategies.roster
from fedadb_app.data.clients import partition_of, validation_rows
from fedadb_app.data.sources import open_dataset

# A busy machine is slow now and then: a test's time is bounded as a whole, not by the example.
hypothesis_settings.register_profile("unhurried", hypothesis_settings(), deadline=None)
hypothesis_settings.load_profile("unhurried")
torch.set_num_threads(1)  # small nets, and another test process beside this one


@pytest.fixture(autouse=True, scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Prepared data go to a folder of this session, never to the user's."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder of this test's own, and nothing opened that lies in another."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    open_dataset.cache_clear()
    partition_of.cache_clear()
    validation_rows.cache_clear()
    yield tmp_path / "cache" / "fedadb"
    open_dataset.cache_clear()
    partition_of.cache_clear()
    validation_rows.cache_clear()


@pytest.fixture(autouse=True, scope="session")
def flower_process() -> Iterator[None]:
    """What Flower tells a process it starts; without it no message can be made."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_task_id", "_run_id", "_node_id"):
            patch.setattr(TaskIdentity, name, SUPERLINK)
        yield


@pytest.fixture(scope="session")
def quadrants(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a small data set: 400 and 80 grey images, class = which quadrant is bright."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, size in (("train", 400), ("test", 80)):
        labels = rng.permutation(size) % 4
        images = rng.integers(0, 100, (size, 28, 28), np.uint8)
        for image, label in zip(images, labels, strict=True):
            top, left = 14 * (label // 2), 14 * (label % 2)
            image[top : top + 14, left : left + 14] += 100
        arrays |= {f"{part}_images": images, f"{part}_labels": labels[:, None]}
    path = tmp_path_factory.mktemp("data") / "quadrants.npz"
    np.savez(path, **arrays)
    return str(path)


@pytest.fixture
def values(tmp_path: Path, quadrants: str) -> dict[str, Any]:
    """A run configuration of two short rounds; a test changes what it needs."""
    return {
        "strategy": "fedavg",
        "dataset": quadrants,
        "partition": "iid",
        "device": "cpu",
        "num-server-rounds": 2,
        "local-epochs": 1,
        "batch-size": 256,
        "fedadb.anchor-steps": 2,
        "output-dir": str(tmp_path / "runs"),
        "run-name": "run",
    }


@pytest.fixture
def federation(values: dict[str, Any]) -> Callable[..., Federation]:
    """Build a federation: `federation(clients=3, **{"learning-rate": 0.1})`."""

    def build(clients: int = 3, nodes: Any = None, **changes: Any) -> Federation:
        return make_federation({**values, **changes}, clients, nodes)

    return build


class Clock:
    """Time that passes only while someone sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.naps = 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.naps += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The roster's time, without the waiting."""
    clock = Clock()
    monkeypatch.setattr(strategies.roster, "time", clock)
    return clock
