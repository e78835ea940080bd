"""Write the tables of keys and modules in these pages, and the schema that an editor reads.

    python docs/write_tables.py

What a key means, its default and what it may be stand in one place: the classes of
fedadb_app/run_keys.py and of each method; what a module is for, in the first paragraph of its
docstring. tests/test_tables_of_keys.py holds the files equal.
"""

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fedadb_app.config import RunConfig, Scalar
from fedadb_app.settings import allowed
from fedadb_app.study import Study
from strategies.registry import METHODS, STRATEGIES

ROOT = Path(__file__).resolve().parents[1]
BASELINES = [name for name in METHODS if name != "fedadb" and METHODS[name].params.defaults()]


def shared() -> dict[str, dict[str, Any]]:
    """Return the shared keys; the configuration itself knows no method by name."""
    keys = RunConfig.described()
    keys["strategy"]["enum"] = list(STRATEGIES)
    return keys


def table(*tables: tuple[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return a Markdown table of keys, each with its table's name and a dot before it."""
    rows = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    for name, keys in tables:
        for key, schema in keys.items():
            default = f"`{_toml(schema['default'])}`"
            cells = (f"`{name}{key}`", default, allowed(schema), schema["description"])
            rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows)


def study_keys() -> str:
    """Return the table of a study file's keys; a key that is left out allows everything."""
    rows = ["| key | value | meaning |", "|---|---|---|"]
    for key, described in Study.described().items():
        schema = {**described, **described.get("anyOf", [{}])[0]}  # the other one is None, left out
        choices = schema.get("items", {}).get("enum")
        if choices:
            value = "a list of " + ", ".join(f'"{choice}"' for choice in choices)
        elif schema.get("type") == "array":
            value = "a list of texts"
        else:
            value = allowed(schema)
        rows.append(f"| `{key}` | {value} | {schema['description']} |")
    return "\n".join(rows)


def _toml(value: Scalar) -> str:
    return tomli_w.dumps({"x": value}).removeprefix("x = ").strip()


def modules() -> str:
    """Return each package as a section with a table of its modules, alphabetically."""
    sections = []
    for room in ("fedadb_app", "strategies"):
        for package in sorted(path.parent for path in (ROOT / room).rglob("__init__.py")):
            files = sorted(path for path in package.glob("*.py") if path.stem != "__init__")
            rows = [f"| `{path.name}` | {_first_paragraph(path)} |" for path in files]
            sections += [
                f"### {package.relative_to(ROOT).as_posix()}/",
                _first_paragraph(package / "__init__.py"),
                "\n".join(["| module | what it is for |", "|---|---|", *rows]),
            ]
    return "\n\n".join(sections)


def _first_paragraph(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("``", "`").replace("|", "\\|")


def tables() -> dict[str, str]:
    """Return the tables by the name that stands in their mark."""
    own = {name: METHODS[name].params.described() for name in METHODS}
    return {
        "shared keys": table(("", shared()), ("fedadb.", own["fedadb"])),
        "keys of the baselines": table(*((f"{name}.", own[name]) for name in BASELINES)),
        "modules": modules(),
        "study keys": study_keys(),
    }


def with_tables(page: str) -> str:
    """Return a page with each table between its marks as it should be."""
    for name, text in tables().items():
        opening, closing = f"<!-- {name}: docs/write_tables.py -->\n", "\n<!-- end -->"
        page = re.sub(
            f"(?<={re.escape(opening)}).*?(?={re.escape(closing)})",
            lambda _, text=text: text,
            page,
            flags=re.DOTALL,
        )
    return page


def editor_schema() -> Mapping[str, Any]:
    """Return the JSON schema of a file of run-configuration values, methods' tables included."""
    schema = RunConfig.model_json_schema()
    own = {name: METHODS[name].params.model_json_schema() for name in (*BASELINES, "fedadb")}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "properties": shared() | own,
    }


def files() -> dict[Path, str]:
    """Return path -> content of everything that is written here."""
    names = ("run.md", "compare.md", "architecture.md", "deploy.md")
    pages = [ROOT / "docs" / name for name in names]
    schema = json.dumps(editor_schema(), indent=1, ensure_ascii=False) + "\n"
    return {page: with_tables(page.read_text()) for page in pages} | {
        ROOT / "configs" / "schema.json": schema
    }


if __name__ == "__main__":
    for path, text in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
