"""A small tuning of two methods."""

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import REPOSITORY
from tuning.cells import ROUNDS, Cells, run
from typer.testing import CliRunner, Result

from fedadb_app.cli import comparison_progress
from fedadb_app.cli.main import main
from fedadb_app.comparison import running
from fedadb_app.flower_run import Simulation
from fedadb_app.tuning.plan import Tuning, checked_tuning

VALUES = {"validation": "0.1", "num-server-rounds": ROUNDS}


@pytest.fixture(scope="session")
def tuning() -> Tuning:
    """FedAvg and FedProx, ten trials each of eight rounds at most."""
    methods, simulation = ["fedavg", "fedprox"], Simulation(4)
    return checked_tuning(REPOSITORY, VALUES, methods, None, 0, simulation, 10, None)


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Call a command that makes runs as `cells` says: `tune(cells, "tune", "--output", …)`."""

    def call(cells: Cells, command: str, *arguments: str) -> Result:
        def watch(bars, run, folder: Path, rounds, name, parent=None, stop=None):
            return cells.watch(run, folder, type("Cell", (), {"name": name}), stop)

        monkeypatch.setattr(comparison_progress, "watch", watch)
        for drawing in ("plot_curves", "plot_classes"):  # seconds, and not what is asked here
            monkeypatch.setattr(running, drawing, lambda *_: None)
        return CliRunner().invoke(main, [command, "--app", str(REPOSITORY), *arguments])

    return call


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tuning: Tuning) -> Path:
    """What an uninterrupted tuning leaves; not to be changed."""
    folder = tmp_path_factory.mktemp("tuning") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        assert all(o.reading for o in run(Cells(patch), folder, tuning))
    return folder
