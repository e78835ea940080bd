"""A run's tables as text, so that a page shows each number as it stands in its file.

The one place where they are written, parsed and checked. A line without its end is still being
written, or was cut off: it does not count.
"""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedadb_app.runs.atomic import append
from fedadb_app.runs.record import DIAGNOSTICS_HEADER, METRICS_HEADER, ROUNDS
from fedadb_app.runs.text_files import read

SECONDS = ("seconds_anchors", "seconds_train", "seconds_aggregate", "seconds_evaluate")
_ALWAYS_KNOWN = ("clients", "failures", "bytes_down", "bytes_up", *SECONDS)
_MAY_BE_INFINITE = ("loss", "epsilon")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """A CSV file's cells.

    Attributes
    ----------
    header : Sequence[str]
        Column names.
    rows : Sequence[Sequence[str]]
        Rows, each as long as the header.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def numbers(self, column: str) -> Floats:
        """Return a column; an empty cell, or a column that is not there, is not a number."""
        if column not in self.header:
            return np.full(len(self.rows), np.nan)
        position = self.header.index(column)
        return np.array([float(row[position] or "nan") for row in self.rows])

    def known(self, column: str) -> tuple[Floats, Floats]:
        """Return the rounds in which a column has a value, and the values."""
        rounds, values = self.numbers("round"), self.numbers(column)
        known = ~np.isnan(values)
        return rounds[known], values[known]

    def per_class(self) -> Floats:
        """Return all columns but the first, ``(rows, columns - 1)``."""
        return np.array([[float(cell or "nan") for cell in row[1:]] for row in self.rows])

    def require(self, columns: Iterable[str]) -> None:
        """Check that it has these columns.

        Raises
        ------
        ValueError
            If it lacks one.
        """
        for column in columns:
            if column not in self.header:
                raise ValueError(f'column "{column}" is not there')

    def total(self, column: str) -> int:
        """Return the sum of a column of whole numbers."""
        return int(self.numbers(column).sum())


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV, as all files of this app have it."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def append_rows(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Add rows to a table, which begins with its first one.

    Raises
    ------
    StorageError
        If the disk does not take them.
    """
    if rows:
        append(path, csv_text(rows if path.exists() else [header, *rows]).encode())


def read_table(text: str, columns: Sequence[str] = ()) -> Table:
    """Parse CSV, but for a line that has no end.

    Parameters
    ----------
    text : str
        What a file holds.
    columns : Sequence[str]
        Those that it must have, in this order; none = any.

    Raises
    ------
    ValueError, csv.Error
        If it is none, has other columns, or rows are of other lengths than the header.
    """
    whole = text[: text.rfind("\n") + 1]
    header, *rows = list(csv.reader(io.StringIO(whole, newline=""))) or [[]]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise ValueError(f"row {number} has {len(row)} cells, the header {len(header)}")
    if columns and header != list(columns):
        raise ValueError(f"its columns are not {', '.join(columns)}")
    return Table(header, rows)


def read_by_round(text: str) -> Table:
    """Parse a table with one row per round.

    Raises
    ------
    ValueError, csv.Error
        If rounds do not rise, or a cell is no finite number.
    """
    table = read_table(text)
    if table.header[:1] != ["round"] or not (np.diff([0, *table.numbers("round")]) > 0).all():
        raise ValueError("its first column is not the round, or does not rise")
    for row in table.rows:
        for column, cell in zip(table.header, row, strict=True):
            if cell and column not in _MAY_BE_INFINITE and not math.isfinite(float(cell)):
                raise ValueError(f'round {row[0]} has "{cell}" as {column}')
    return table


def read_rounds(text: str) -> Table:
    """Parse ``rounds.csv``.

    Raises
    ------
    ValueError, csv.Error
        As `read_by_round`, or if a column that every version writes is not there.
    """
    table = read_by_round(text)
    for column in _ALWAYS_KNOWN:
        if not np.isfinite(table.numbers(column)).all():
            raise ValueError(f'column "{column}" is not there or lacks a number')
    for column in _MAY_BE_INFINITE:
        table.numbers(column)
    return table


def read_diagnostics(text: str) -> Table:
    """Parse ``diagnostics.csv``, but for a last round that is still being written.

    Raises
    ------
    ValueError, csv.Error
        If it has other columns, or a value is no number.
    """
    table = read_table(text)
    if tuple(table.header) != DIAGNOSTICS_HEADER:
        raise ValueError("its columns are not round, name and value")
    names: dict[int, set[str]] = {}
    for t, name, value in table.rows:
        float(value)
        names.setdefault(int(t), set()).add(name)
    *before, last = names or [0]
    if before and not set.intersection(*(names[t] for t in before)) <= names[last]:
        return Table(table.header, [row for row in table.rows if int(row[0]) != last])
    return table


def read_metrics(text: str) -> Table:
    """Parse ``metrics.csv``.

    Raises
    ------
    ValueError, csv.Error
        If it has other columns, a round is no whole number, or a value is no finite number.
    """
    table = read_table(text, METRICS_HEADER)
    for t, part, metric, _, value in table.rows:
        if int(t) < 1 or not math.isfinite(float(value or 0)):
            raise ValueError(f'round {t} has "{value}" as {metric} of {part}')
    return table


def metric(table: Table | None, part: str, name: str) -> dict[int, float]:
    """Return round -> value of one metric of all images of a part, where it is known."""
    rows = [] if table is None else table.rows
    wanted = (part, name, "")
    return {int(t): float(value) for t, *what, value in rows if value and tuple(what) == wanted}


def diagnostic(table: Table | None, name: str) -> tuple[Floats, Floats]:
    """Return the rounds and the values of one name in ``diagnostics.csv``; none without it."""
    rows = [] if table is None else table.rows
    pairs = [(float(t), float(value)) for t, what, value in rows if what == name]
    return np.array([t for t, _ in pairs]), np.array([value for _, value in pairs])


def read_accuracies(folder: Path) -> tuple[list[float], int]:
    """Return the accuracies in ``rounds.csv`` so far, and the number of finished rounds.

    Raises
    ------
    DataError
        If a cell is no number.
    """

    def parse(text: str) -> tuple[list[float], int]:
        table = read_table(text)
        return table.known("accuracy")[1].tolist(), len(table.rows)

    return read(folder / ROUNDS, parse) or ([], 0)
