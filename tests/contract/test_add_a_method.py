"""docs/add-a-method.md, done as it says in a copy of the checkout: FedProx, and its tests there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import REPOSITORY

PAGE = (REPOSITORY / "docs" / "add-a-method.md").read_text()
COPIED = ("fedadb_app", "strategies", "tests", "docs", "README.md", "pyproject.toml")
REGISTRY = "defaults or unknown or strategy or result"
"""A word in the names of those tests of these files that go through the registry."""
APPS = ("client_app.py", "server_app.py")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of the checkout with the page's method."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in (*COPIED, *APPS):
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    method, imported, line, own_test = blocks("python")
    (table,) = blocks("toml")
    (copy / "strategies" / "fedprox.py").write_text(method)
    (copy / "tests" / "strategies" / "test_fedprox.py").write_text(own_test)
    registry = copy / "strategies" / "registry.py"
    text = registry.read_text()
    for after, added in (("from collections.abc", imported), ('    "fedavg":', line)):
        assert text.count(f"\n{after}") == 1
        text = text.replace(f"\n{after}", f"\n{added}{after}")
    registry.write_text(text)
    with (copy / "pyproject.toml").open("a") as file:
        file.write("\n" + table)
    return copy


def passes(checkout: Path, *tests: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert re.search(r"[1-9]\d* passed", done.stdout), done.stdout[-2000:]


def test_its_own_test_and_the_contract_suite_pass(checkout):
    passes(checkout, "tests/strategies/test_fedprox.py", "tests/contract", "-k", "fedprox")


def test_nothing_else_has_to_know_it(checkout):
    """Its table is found, and the paper's list of methods need not be the registry."""
    passes(checkout, "tests/test_config.py", "tests/reproduction/test_studies.py", "-k", REGISTRY)
