"""What is shipped: the app bundle, the dependencies, the sizes, and who may import whom."""

import ast
import io
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from flwr.cli.build import build_fab_from_disk
from helpers import REPOSITORY

PYPROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
APPS = ("client_app.py", "server_app.py")
ROOMS = ("fedadb_app", "strategies")


def sources() -> list[Path]:
    """Every module that is shipped."""
    files = [REPOSITORY / app for app in APPS]
    for room in ROOMS:
        files += sorted((REPOSITORY / room).rglob("*.py"))
    return files


def names(requirements: list[str]) -> set[str]:
    """The projects, as PyPI compares them."""
    found = [re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", text) for text in requirements]
    return {re.sub(r"[-_.]+", "-", match.group()).lower() for match in found if match}


# --- dependencies ---------------------------------------------------------------------------


def test_a_superlink_installs_nothing():
    """A name that is missing there makes every run download its own torch."""
    project = PYPROJECT["project"]
    needed = names(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        needed |= names(extra)
    overrides = PYPROJECT["tool"]["uv"]["override-dependencies"]
    assert names(overrides) == needed
    for override in overrides:
        assert override.split(";")[1].strip() == "python_version < '3'", override
    assert "dependency-groups" not in PYPROJECT  # `uv sync` would install the group `dev`


def test_what_is_imported_is_declared():
    declared = names(PYPROJECT["project"]["dependencies"]) | {"tomli-w", "click", "ray"}  # of flwr
    # An extra that is imported where it is needed, with a sentence where it is not there.
    for extra in ("nifti", "timm", "export", "tune"):
        declared |= names(PYPROJECT["project"]["optional-dependencies"][extra])
    distribution = {
        "PIL": "pillow",
        "markdown_it": "markdown-it-py",
        "sklearn": "scikit-learn",
        "prometheus_client": "prometheus-client",
        "tomli_w": "tomli-w",
    }
    own = {*ROOMS, *(app.removesuffix(".py") for app in APPS)}
    for path in sources():
        for module in imported(path):
            top = module.partition(".")[0]
            if top in sys.stdlib_module_names or top in own:
                continue
            assert distribution.get(top, top) in declared, f"{path.name} imports {module}"


# --- the app bundle -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> bytes:
    """The FAB of a copy of this checkout, with what lies around in one that was worked in."""
    copy = tmp_path_factory.mktemp("copy") / "fedadb"
    shutil.copytree(
        REPOSITORY,
        copy,
        ignore=shutil.ignore_patterns(".git", ".*_cache", ".hypothesis", "__pycache__", "*venv"),
    )
    (copy / "fedadb_app" / "scratch.csv").write_text("1,2")
    (copy / "notes.md").write_text("mine")
    (copy / "patients.json").write_text("{}")
    (copy / "my_script.py").write_text("print(1)")
    return build_fab_from_disk(copy)


def test_the_bundle_holds_exactly_the_app(bundle):
    """A module named test_*.py or lying in a folder lib/ would vanish without notice."""
    expected = {path.relative_to(REPOSITORY).as_posix() for path in sources()}
    expected |= {"README.md", "LICENSE", "pyproject.toml"}
    with zipfile.ZipFile(io.BytesIO(bundle)) as fab:
        found = {name for name in fab.namelist() if not name.startswith(".info/")}
    assert found == expected


def test_the_bundle_is_small(bundle):
    """Text, not packed; each SuperNode gets it once per run. Data or a model would stand out."""
    assert len(bundle) < 3 * 2**19


def test_the_bundle_keeps_the_configuration(bundle):
    with zipfile.ZipFile(io.BytesIO(bundle)) as fab:
        packed = tomllib.loads(fab.read("pyproject.toml").decode())
    assert packed["tool"]["flwr"] == PYPROJECT["tool"]["flwr"]
    assert packed["tool"]["uv"] == PYPROJECT["tool"]["uv"]


def test_the_components_exist_in_the_unpacked_bundle(bundle, tmp_path):
    """Flower unpacks it and puts that folder first on the path; nothing else may be needed."""
    components = PYPROJECT["tool"]["flwr"]["app"]["components"]
    with zipfile.ZipFile(io.BytesIO(bundle)) as fab:
        fab.extractall(tmp_path)
    code = f"""
import importlib, sys
sys.path.insert(0, {str(tmp_path)!r})
for name in {sorted(components.items())!r}:
    module, _, attribute = name[1].partition(":")
    print(name[0], type(getattr(importlib.import_module(module), attribute)).__name__)
strangers = [m.__file__ for n, m in sys.modules.items()
             if n.split(".")[0] in {(*ROOMS, "client_app", "server_app")!r}
             and not m.__file__.startswith({str(tmp_path)!r})]
print(strangers)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["clientapp ClientApp", "serverapp ServerApp", "[]"]


def test_connections_are_not_the_apps_business():
    """Since Flower 1.26 they are the user's (~/.flwr/config.toml); it ignores the table."""
    assert "federations" not in PYPROJECT["tool"]["flwr"]


def test_the_wheel_holds_every_module():
    included = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    assert set(included) == {*ROOMS, *APPS}


# --- the shape of the code ------------------------------------------------------------------


@pytest.mark.parametrize("app", APPS)
def test_the_apps_are_thin(app):
    assert len((REPOSITORY / app).read_text().splitlines()) < 100


def imported(path: Path) -> set[str]:
    """The absolute names that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("old", ["flwr.server", "flwr.client", "flwr.common"])
def test_no_module_imports_what_flower_has_left_behind(old):
    pages = {"flower_internals.py", "simulation_workers.py"}  # for what Flower does not publish
    for path in (path for path in sources() if path.name not in pages):
        for module in imported(path):
            assert module != old, path
            assert not module.startswith(f"{old}."), path


def test_the_house_does_not_know_its_methods():
    """A new method is one file and one line in the registry; `fedadb` is also the app's name.

    The paper's own tables and figures are about the paper's methods.
    """
    methods = {path.stem for path in (REPOSITORY / "strategies").glob("fed*.py")}
    assert {"fedavg", "fedadb"} <= methods
    paper = REPOSITORY / "fedadb_app" / "reproduction"
    for path in {*(REPOSITORY / "fedadb_app").rglob("*.py")} - {*paper.rglob("*.py")}:
        texts = {
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert not texts & (methods - {"fedadb"}), path


def test_import_contracts_hold():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command as c; c()",
            "--no-cache",
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout
