"""What Flower does not publish stays on one page, and is still as that page says."""

import ast
from collections.abc import Iterator
from pathlib import Path

import flwr.clientapp.typing
import pytest
from fake_grid import FakeGrid, SimulatedGrid
from helpers import REPOSITORY

from fedadb_app import flower_internals

PUBLISHED = {
    "flwr.app",
    "flwr.clientapp",
    "flwr.clientapp.mod",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
    "flwr.simulation",
}
MODULES = sorted(
    path
    for pattern in ("fedadb_app/**/*.py", "strategies/**/*.py", "client_app.py", "server_app.py")
    for path in REPOSITORY.glob(pattern)
)


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (
                f"{node.module}.{alias.name}" for alias in node.names if node.module == "flwr"
            )


def private(path: Path) -> set[str]:
    flower = {name for name in imported(path) if name.split(".")[0] == "flwr"}
    return flower - PUBLISHED - {"flwr"}


def test_only_three_modules_import_what_flower_does_not_publish():
    found = {path.relative_to(REPOSITORY).as_posix() for path in MODULES if private(path)}
    assert found == {
        "fedadb_app/flower_internals.py",
        "fedadb_app/flower_processes.py",
        "fedadb_app/simulation_workers.py",
    }


@pytest.mark.parametrize(
    "line", ["import flwr.proto", "from flwr.supercore.exit import a", "from flwr import supercore"]
)
def test_the_search_finds_each_kind_of_import(tmp_path, line):
    (tmp_path / "module.py").write_text(f"def f():\n    {line}\n")
    assert private(tmp_path / "module.py")


def test_what_a_mod_calls_next_has_the_type_that_flower_gives_it():
    assert flwr.clientapp.typing.ClientAppCallable == flower_internals.ClientAppCallable


def test_a_simulation_is_told_by_its_grid():
    assert flower_internals.is_simulation(SimulatedGrid({}, {}))
    assert not flower_internals.is_simulation(FakeGrid({}, {}))
