"""A run's tables as series over rounds: what a tracker shows, cell by cell."""

import re
from collections.abc import Iterator
from pathlib import Path

from fedadb_app.runs.record import TABLES
from fedadb_app.runs.tables import Table, read_table
from fedadb_app.runs.text_files import read


def cells(run_folder: Path) -> Iterator[tuple[int, str, float]]:
    """Yield round, tag and value of each cell that is not empty.

    Tags are ``rounds/<column>``, ``class_accuracy/<label>-<name>``, ``diagnostics/<name>`` and, of
    whole parts, ``metrics/<part>-<metric>``.

    Raises
    ------
    DataError
        If a table is damaged.
    """
    rounds, classes, diagnostics, metrics = (_table(run_folder / name) for name in TABLES)
    for row in rounds.rows:
        for column, cell in zip(rounds.header[1:], row[1:], strict=True):
            if cell:
                yield int(row[0]), f"rounds/{column}", float(cell)
    for row in classes.rows:
        for label, (name, cell) in enumerate(zip(classes.header[1:], row[1:], strict=True)):
            if cell:  # the label keeps apart two names that differ in unsafe characters only
                yield int(row[0]), f"class_accuracy/{label}-{_safe(name)}", float(cell)
    for server_round, name, cell in diagnostics.rows:
        yield int(server_round), f"diagnostics/{_safe(name)}", float(cell)
    for server_round, part, metric, class_name, cell in metrics.rows:
        if cell and not class_name:
            yield int(server_round), f"metrics/{part}-{metric}", float(cell)


def _table(path: Path) -> Table:
    """Return a table; those of classes and diagnostics come with their first row."""
    return read(path, read_table) or Table([], [])


def _safe(name: str) -> str:
    """Leave only what trackers take for no group and an address needs no escape for."""
    return re.sub(r"[^\w.-]", "_", name)
