"""What a method cannot do is said before a folder exists or a node is awaited."""

import re
from pathlib import Path

import pytest
from fake_grid import FakeGrid
from helpers import REPOSITORY, federation_of_nodes, server_context, simulated_nodes

import server_app
from fedadb_app.config import RunConfig
from fedadb_app.errors import ConfigError, DataError
from fedadb_app.flower_run import checked_values
from strategies.fit import refuse_misfit
from strategies.registry import METHODS

IMPOSSIBLE = {
    "noise on running statistics": (
        {"privacy": "central", "model": "resnet18"},
        'privacy="central" needs a model without running statistics',
    ),
    "noise on the head's running statistics": (
        {"privacy": "local", "strategy": "fedgela", "model": "lenet"},
        'privacy="local" needs a model without running statistics',
    ),
    "noise where each update is needed": (
        {"privacy": "central", "strategy": "feddyn"},
        'privacy="central" is not possible with strategy="feddyn"',
    ),
    "batches of one image": (
        {"strategy": "fedgela", "batch-size": 1},
        "batch-size=1 leaves fedgela nothing to train on",
    ),
    "more classes than features": (
        {**federation_of_nodes(85), "strategy": "fedgela", "model": "lenet"},
        "84 for 85 classes",
    ),
    "a test image alone in its batch": (  # 80 = 79 + 1
        {"strategy": "fedgela", "norm": "batch-local", "batch-size": 79},
        'norm="batch-local" has no statistics of a single image',
    ),
    "replies smaller than the model": (
        {"max-reply-bytes": 1000},
        "max-reply-bytes=1000 is not allowed: the model alone has",
    ),
    "images too small": ({"model": "googlenet"}, 'model="googlenet" .* needs 64 pixels'),
}
"""What is wrong -> values that ask for it, and the sentence's beginning."""

each = pytest.mark.parametrize(("changes", "sentence"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)


@each
def test_the_server_says_it_before_a_folder_and_before_a_node(values, tmp_path, changes, sentence):
    grid = FakeGrid({**values, **changes}, simulated_nodes(2))
    with pytest.raises(ConfigError, match=sentence):
        server_app.app(grid, server_context({**values, **changes}))
    assert not (tmp_path / "runs").exists()
    assert grid.sent == []


@each
def test_fedadb_run_says_it_before_it_asks_flower(values, changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        checked_values(REPOSITORY, {**values, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"privacy": "central", "model": "resnet18", "norm": "batch-local"},
        {"privacy": "local", "strategy": "fedgela", "norm": "batch-local"},
        {"strategy": "fedgela", "norm": "batch-local", "batch-size": 79, "evaluate": "clients"},
        {"strategy": "fedgela", "batch-size": 79},
        {"norm": "batch-local", "batch-size": 79, "model": "resnet18"},
        {**federation_of_nodes(84), "strategy": "fedgela", "model": "lenet"},
    ],
)
def test_its_neighbours_are_not_refused(values, changes):
    checked_values(REPOSITORY, {**values, **changes})


def test_of_data_that_are_not_here_nothing_is_said(tmp_path: Path):
    """Whether there are 85 classes, nobody can know; the run says it once it has the data."""
    path = str(tmp_path / "there-alone.npz")
    refuse_misfit(RunConfig(strategy="fedgela", dataset=path), METHODS["fedgela"])
    assert list(tmp_path.iterdir()) == []


def test_what_is_known_of_a_data_set_is_used_before_it_is_downloaded(tmp_path: Path):
    config = RunConfig(dataset="cifar100", model="lenet", data_dir=str(tmp_path))
    refuse_misfit(config, METHODS["fedavg"])
    with pytest.raises(ConfigError, match="84 for 100 classes"):
        refuse_misfit(config, METHODS["fedgela"])
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_data_set_is_left_to_the_run(values, tmp_path):
    """Its folder keeps the reason."""
    path = tmp_path / "broken.npz"
    path.write_bytes(b"no archive")
    with pytest.raises(DataError, match=re.escape(str(path))):
        server_app.app(
            FakeGrid(values, simulated_nodes(2)), server_context({**values, "dataset": str(path)})
        )
    assert (tmp_path / "runs" / "run" / "summary.json").exists()
