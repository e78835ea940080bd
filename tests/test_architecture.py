"""docs/architecture.md shows the house as it is: its floors, every room and module."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs" / "architecture.md"
ROOMS = ("fedadb_app", "strategies")


def picture() -> list[list[list[str]]]:
    """Floors of the page's first code block, from above: their lines, and the names on each.

    Words with a capital are there for the reader.
    """
    block = PAGE.read_text().partition("```\n")[2].partition("```")[0]
    floors: list[list[list[str]]] = []
    for line in block.splitlines():
        if "═" in line:
            floors.append([])
        elif floors and (words := re.findall(r"\b[a-z_]+\b", line)):
            floors[-1].append(words)
    return floors


def test_the_picture_is_the_contract():
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = [c for c in settings["contracts"] if c["type"] == "layers"]
    assert not contract.get("ignore_imports")
    layers = [
        re.findall(r"[\w.]+", layer.replace("fedadb_app.", "")) for layer in contract["layers"]
    ]
    top, middle, ground = picture()
    assert [*top, *middle] == layers[:-1]
    assert sorted(name for line in ground for name in line) == sorted(layers[-1])


def test_every_room_is_in_the_picture():
    """A room that the contract does not know could import whatever it likes."""
    rooms = {path.stem for path in (REPOSITORY / "fedadb_app").glob("*.py")} - {"__init__"}
    rooms |= {path.parent.name for path in (REPOSITORY / "fedadb_app").glob("*/__init__.py")}
    named = [name for floor in picture() for line in floor for name in line]
    assert sorted(named) == sorted({*rooms, "strategies"})


def test_the_names_in_a_round_are_those_of_the_code():
    """Classes, functions and methods in the page's second code block."""
    block = PAGE.read_text().partition("## A round\n")[2].partition("```\n")[2].partition("```")[0]
    named = set(re.findall(r"\b(?:[A-Z]\w+\.\w+|[a-z]+_[a-z_]+)\b(?!\.csv)", block)) - {
        "client_app"
    }
    assert len(named) > 8
    code = [REPOSITORY / "client_app.py"]
    code += [path for room in ROOMS for path in (REPOSITORY / room).rglob("*.py")]
    defined = set()
    for path in code:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined.add(node.name)
            if isinstance(node, ast.ClassDef):
                methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
                defined |= {f"{node.name}.{method.name}" for method in methods}
    assert named <= defined, named - defined


def test_every_module_has_its_line():
    """What a line says is the module's docstring: tests/test_tables_of_keys.py."""
    package, listed = "", []
    for line in PAGE.read_text().partition("## Beside the code")[0].splitlines():
        if line.startswith("### "):
            package = line.removeprefix("### ")
        elif match := re.match(r"\| `(\w+\.py)` \| (.*) \|$", line):
            assert match[2].strip(), line
            listed.append(package + match[1])
    found = [path for room in ROOMS for path in (REPOSITORY / room).rglob("*.py")]
    names = [path.relative_to(REPOSITORY).as_posix() for path in found if path.stem != "__init__"]
    assert sorted(listed) == sorted(names), "run: python docs/write_tables.py"


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="not a checkout of git")
def test_everything_beside_the_code_is_named():
    """Files and folders at the top of the repository, as git has them."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    found = {line.split("/")[0] for line in done.stdout.splitlines()}
    found = {name for name in found if (REPOSITORY / name).exists()}  # git lists what is removed
    text = PAGE.read_text().partition("## Beside the code\n")[2].partition("\n## ")[0]
    first_cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = re.findall(r"`([^`]+?)/?`", "".join(first_cells))
    assert sorted(named) == sorted(found - set(ROOMS))


def test_no_file_is_long_and_no_class_either():
    """Lines: 300 of a file, 200 of a class of the two packages, each with its docstrings."""
    rooms = (*ROOMS, "tests", "benchmarks", "docs", "examples")
    for path in (path for room in rooms for path in (REPOSITORY / room).rglob("*.py")):
        room = path.relative_to(REPOSITORY).parts[0]
        code = path.read_text(encoding="utf-8")
        assert len(code.splitlines()) <= 300, path
        for node in ast.walk(ast.parse(code)):
            if room in ROOMS and isinstance(node, ast.ClassDef):
                assert node.end_lineno - node.lineno < 200, (path, node.name)
