"""Real Flower processes: a SuperLink for simulations, a SuperLink for SuperNodes, and two apps.

Everything a process writes lies in temporary folders (``FLWR_HOME``, ``HOME``, caches, Ray); the
ports are free ones, so nothing here meets a federation that runs on the same machine.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from flower.apps import copy_app, rehearsed
from flower.runs import Outcome, in_one_process
from flower.superlink import SuperLink

from fedadb_app.certificates import issue


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The app as it is; a copy, so that an edit during the tests does not split them."""
    return copy_app(tmp_path_factory.mktemp("apps") / "app")


@pytest.fixture(scope="session")
def rehearsal_app(app: Path) -> Path:
    """The app whose processes follow a script (`rehearsal.py`)."""
    return rehearsed(shutil.copytree(app, app.parent / "rehearsal"))


def superlink(
    home: Path, app: Path, simulation: bool, credentials: Path | None = None
) -> Iterator[SuperLink]:
    """Start one in a folder where modules of our names lie that no run may import."""
    home.mkdir()
    for name in ("client_app", "server_app", "strategies", "fedadb_app"):
        (home / f"{name}.py").write_text("raise RuntimeError('not the module of the run')\n")
    database = None if simulation else home / "state.db"
    link = SuperLink(app, simulation, credentials, database, home=home)
    link.foreign_cluster.parent.mkdir()
    link.foreign_cluster.write_text("127.0.0.1:1")
    try:
        link.start()
        yield link
    finally:
        link.stop()


@pytest.fixture(scope="session")
def simulation(tmp_path_factory: pytest.TempPathFactory, app: Path) -> Iterator[SuperLink]:
    """A SuperLink that simulates its SuperNodes, as the managed local one does."""
    yield from superlink(tmp_path_factory.mktemp("simulation") / "home", app, simulation=True)


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory, app: Path) -> Iterator[SuperLink]:
    """A SuperLink that real SuperNodes connect to."""
    yield from superlink(tmp_path_factory.mktemp("deployment") / "home", app, simulation=False)


@pytest.fixture
def doomed_deployment(tmp_path: Path, app: Path) -> Iterator[SuperLink]:
    """A SuperLink that real SuperNodes connect to, for one test, which may kill it."""
    yield from superlink(tmp_path / "home", app, simulation=False)


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory, app: Path) -> Iterator[SuperLink]:
    """A SuperLink that speaks TLS as superlink.example.org and admits SuperNodes by their key."""
    folder = tmp_path_factory.mktemp("guarded")
    issue(folder / "credentials", ["superlink.example.org"], ["hospital-a", "hospital-b"], 365)
    yield from superlink(folder / "home", app, False, folder / "credentials")


@pytest.fixture(scope="session")
def bare_twin(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """All defaults but the number of rounds, in this process; Flower's find the same."""
    return in_one_process("num-server-rounds=2", 2, tmp_path_factory.mktemp("bare"))
