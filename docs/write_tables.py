"""Write the tables of keys and modules in these pages, and the schema that an editor reads.

    python docs/write_tables.py

What a key means, its default and what it may be stand in one place: the classes of
fedadb_app/run_keys.py and of each method; what a module is for, in the first paragraph of its
docstring; what was measured, in results/ (docs/add_results.py). tests/test_tables_of_keys.py holds
the files equal.
"""

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fedadb_app.comparison.tables import mean_and_std
from fedadb_app.config import RunConfig, Scalar
from fedadb_app.runs.tables import read_table
from fedadb_app.settings import allowed
from fedadb_app.study import Study
from strategies.registry import METHODS, STRATEGIES, method_title
from strategies.tunable import LEARNING_RATE, OneOf

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
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


def spaces() -> str:
    """Return the table of what `fedadb tune` chooses of each method."""
    rows = ["| key | default | from | to | scale |", "|---|---|---|---|---|"]
    for prefix, own, defaults in (
        ("", {"learning-rate": LEARNING_RATE}, RunConfig.defaults()),
        *((f"{name}.", m.tunable, m.params.defaults()) for name, m in METHODS.items()),
    ):
        for key, of in own.items():
            begin = f"| `{prefix}{key}` | `{_toml(defaults[key])}`"
            if isinstance(of, OneOf):
                rows.append(f"{begin} | one of {', '.join(map(str, of.values))} | | |")
            else:
                rows.append(f"{begin} | {of.low:g} | {of.high:g} | {'log' if of.log else ''} |")
    return "\n".join(rows)


def results(path: Path) -> str:
    """Return what ``results/*.csv`` says: each method's mean over seeds, and each run's origin."""
    file = read_table(path.read_text())
    cells = [dict(zip(file.header, row, strict=True)) for row in file.rows]
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for one in cells:
        groups.setdefault((one["alpha"], one["method"]), []).append(one)
    shown = ("last50", "final", "best5", "forgetting", "reported_accuracy")
    titles = ("last 50", "final", "best five rounds", "forgetting", "reported round")
    lines = [f"| method | alpha | seeds | rounds | {' | '.join(titles)} |", "|---" * 9 + "|"]
    for (alpha, method), of_one in groups.items():
        rounds = ", ".join(dict.fromkeys(one["rounds"] for one in of_one))
        numbers = [
            mean_and_std([float(one[name]) for one in of_one])
            if all(one[name] for one in of_one)
            else "–"
            for name in shown
        ]
        begin = f"| {method_title(method)} | {alpha} | {len(of_one)} | {rounds}"
        lines.append(f"{begin} | {' | '.join(numbers)} |")
    lines += ["", "| run | configuration | commit | app | machine |", "|---|---|---|---|---|"]
    for one in cells:
        run = f"{one['method']}, alpha {one['alpha']}, seed {one['seed']}"
        origin = (f"`{one[name]}`" for name in ("configuration", "commit", "app"))
        lines.append(f"| {run} | {' | '.join(origin)} | {one['machine']} |")
    commands = "\n".join(one["command"] for one in cells)
    return "\n".join([*lines, "", "```bash", commands, "```"])


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
        "tunable values": spaces(),
        **{f"results/{path.name}": results(path) for path in sorted(RESULTS.glob("*.csv"))},
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
    names = ("run.md", "compare.md", "tune.md", "results.md", "architecture.md", "deploy.md")
    pages = [ROOT / "docs" / name for name in names]
    schema = json.dumps(editor_schema(), indent=1, ensure_ascii=False) + "\n"
    return {page: with_tables(page.read_text()) for page in pages} | {
        ROOT / "configs" / "schema.json": schema
    }


if __name__ == "__main__":
    for path, text in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
