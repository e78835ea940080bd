"""Add the runs of a comparison to a table of docs/results.md.

    python docs/add_results.py digits ~/comparisons/digits
    python docs/write_tables.py

The first line writes ``results/digits.csv``: a row per complete run, with its numbers and where
they come from. A row of the same method, alpha and seed is replaced. The page shows the file where
it has ``<!-- results/digits.csv: docs/write_tables.py -->`` and ``<!-- end -->``.
"""

import hashlib
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

from fedadb_app.app_hash import app_hash
from fedadb_app.assignments import app_defaults, as_assignments, flatten
from fedadb_app.comparison.grid import Cell
from fedadb_app.comparison.readings import read_run
from fedadb_app.config import Scalar
from fedadb_app.errors import DataError, FedADBError
from fedadb_app.runs.atomic import replace
from fedadb_app.runs.checkpoint import MAY_DIFFER
from fedadb_app.runs.origin import git_state
from fedadb_app.runs.reader import read_configuration
from fedadb_app.runs.record import cell
from fedadb_app.runs.summary import read_summary
from fedadb_app.runs.tables import csv_text, read_table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
NUMBERS = ("last50", "final", "best5", "forgetting")
COLUMNS = (
    *("method", "alpha", "seed", "rounds", *NUMBERS, "reported_round", "reported_accuracy"),
    *("configuration", "commit", "app", "machine", "command"),
)


def row_of(folder: Path) -> list[str]:
    """Return the row of one complete run.

    Raises
    ------
    DataError
        If it cannot be read.
    """
    summary = read_summary(folder)
    values = flatten(read_configuration(folder))
    this = Cell(str(values["strategy"]), float(values["alpha"]), int(values["seed"]))
    found = read_run(this, folder)
    told = tomllib.loads((folder / "config.toml").read_text())
    origin = told.get("origin", {})
    return [
        *(this.strategy, f"{this.alpha:g}", str(this.seed), str(summary["rounds"])),
        *(f"{getattr(found, name):.2f}" for name in NUMBERS),
        *(str(found.reported_round), cell("accuracy", found.reported["accuracy"])),
        *(configuration(values), commit(origin), str(origin.get("app-hash", ""))[:12]),
        *(machine(origin), command(values, int(summary["clients"]))),
    ]


def configuration(values: dict[str, Scalar]) -> str:
    """Return the hash of all that a run's numbers follow from: its whole configuration."""
    kept = {key: value for key, value in values.items() if key not in MAY_DIFFER}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]


def commit(origin: dict[str, Any]) -> str:
    """Return the Git commit of the code that ran, as far as it can be told.

    A run in a simulation only knows its app-hash; if this checkout has the same, it is its commit.
    A ``+`` says that files of the checkout were changed.
    """
    told = str(origin.get("git", "unknown"))
    if told.startswith("unknown") and origin.get("app-hash") == app_hash(ROOT):
        told = git_state(ROOT)
    if told.startswith("unknown"):
        return "unknown"
    return told[:12] + ("" if told.endswith(", no changed files") else "+")


def machine(origin: dict[str, Any]) -> str:
    """Return processor, cores and GPU in a few words."""
    if not origin:
        return "unknown"
    gpu = "" if origin["gpu"] == "none used" else f", {origin['gpu']}"
    return f"{origin['processor']}, {origin['cores']} cores{gpu}"


def command(values: dict[str, Scalar], clients: int) -> str:
    """Return the command that repeats a run."""
    defaults = app_defaults(ROOT)
    own = {
        key: value
        for key, value in values.items()
        if key not in MAY_DIFFER - {"data-dir"} and value != defaults.get(key)
    }
    said = as_assignments(own).replace("'", "'\\''")
    return f"fedadb run --num-supernodes {clients} -c '{said}'"


def add(name: str, comparison: Path) -> Path:
    """Write ``results/<name>.csv`` with the runs of a comparison; return its path.

    Raises
    ------
    DataError
        If no run of it can be counted.
    """
    path = RESULTS / f"{name}.csv"
    rows = {}
    if path.exists():
        table = read_table(path.read_text())
        rows = {tuple(row[:3]): list(row) for row in table.rows}
    before = len(rows)
    added = 0
    for folder in sorted((comparison / "runs").glob("*/")):
        if read_summary(folder).get("status") == "completed":
            row = row_of(folder)
            rows[tuple(row[:3])] = row
            added += 1
    if not added:
        raise DataError(f"{comparison} holds no complete run of a comparison")
    replace(path, csv_text([COLUMNS, *rows.values()]).encode())
    sys.stdout.write(f"{path}: {added} runs, {len(rows) - before} of them new\n")
    return path


if __name__ == "__main__":
    try:
        add(sys.argv[1], Path(sys.argv[2]).expanduser())
    except IndexError:
        sys.exit("usage: python docs/add_results.py NAME COMPARISON")
    except FedADBError as error:
        sys.exit(str(error))
