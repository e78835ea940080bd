"""What a run's folder says, as text, so that a page shows each number as it stands in its file."""

import csv
import io
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedadb_app.errors import DataError
from fedadb_app.results import snapshots

T = TypeVar("T")
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """A CSV file's cells.

    Attributes
    ----------
    header : Sequence[str]
        Column names.
    rows : Sequence[Sequence[str]]
        Complete rows; a last line that is still being written is not among them.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def numbers(self, column: str) -> Floats:
        """Return a column; an empty cell, or a column that is not there, is not a number."""
        if column not in self.header:
            return np.full(len(self.rows), np.nan)
        position = self.header.index(column)
        return np.array([float(row[position] or "nan") for row in self.rows])

    def total(self, column: str) -> int:
        """Return the sum of a column of whole numbers."""
        return int(self.numbers(column).sum())


@dataclass(frozen=True)
class RunFiles:
    """The files of one run; None (or nothing) for those that are not there.

    Attributes
    ----------
    folder : Path
        Where they lie.
    summary, config : Mapping[str, Any]
        Values of ``summary.json`` and ``config.toml``, numbers as text.
    rounds, class_accuracy, diagnostics : Table or None
        The three tables.
    partition : Mapping[str, Any] or None
        ``partition.json``.
    anchors : Mapping[int, Mapping[str, torch.Tensor]]
        Round -> the anchors that it was trained with, of the rounds of ``snapshots/`` and the last:
        ``images`` ``(N, channels, height, width)``, ``labels`` and ``confidences`` ``(N,)``.
    damaged : Sequence[str]
        A sentence for each file in ``snapshots/`` that cannot be read.
    """

    folder: Path
    summary: Mapping[str, Any]
    config: Mapping[str, Any]
    rounds: Table
    class_accuracy: Table | None
    diagnostics: Table | None
    partition: Mapping[str, Any] | None
    anchors: Mapping[int, Mapping[str, Tensor]]
    damaged: Sequence[str]

    @property
    def num_rounds(self) -> int:
        """T, as configured; without ``config.toml`` the rounds that there are."""
        return int(self.config.get("num-server-rounds", len(self.rounds.rows)))

    @property
    def class_names(self) -> Sequence[str]:
        """Class names, from whichever file has them."""
        if self.partition is not None:
            return [str(name) for name in self.partition["classes"]]
        return [] if self.class_accuracy is None else self.class_accuracy.header[1:]

    def class_counts(self) -> npt.NDArray[np.int64] | None:
        """Return samples per client and class, ``(K, C)``; None where only the nodes know."""
        clients = [] if self.partition is None else self.partition["clients"]
        if not clients or "class_counts" not in clients[0]:
            return None
        return np.array([client["class_counts"] for client in clients])

    def diagnostic(self, name: str) -> tuple[Floats, Floats]:
        """Return the rounds and the values of one name in ``diagnostics.csv``."""
        rows = [] if self.diagnostics is None else self.diagnostics.rows
        pairs = [(float(t), float(value)) for t, what, value in rows if what == name]
        return np.array([t for t, _ in pairs]), np.array([value for _, value in pairs])


def read_files(folder: Path) -> RunFiles:
    """Read a run's folder, finished or not.

    Raises
    ------
    DataError
        If it holds no run, or a file in it, but for ``snapshots/``, is damaged.
    """
    summary = read(folder / "summary.json", _summary)
    rounds = read(folder / "rounds.csv", _rounds)
    if summary is None or rounds is None:
        missing = "summary.json" if summary is None else "rounds.csv"
        raise DataError(f"{folder} holds no run: {missing} is not there")
    anchors, damaged = _kept_anchors(folder)
    last = folder / "anchors.safetensors"
    if last.exists():
        anchors[len(rounds.rows)] = _anchors(last)
    return RunFiles(
        folder=folder,
        summary=summary,
        config=read(folder / "config.toml", _config) or {},
        rounds=rounds,
        class_accuracy=read(folder / "class_accuracy.csv", _by_round),
        diagnostics=read(folder / "diagnostics.csv", _by_round),
        partition=read(folder / "partition.json", _partition),
        anchors=anchors,
        damaged=damaged,
    )


def read(path: Path, parse: Callable[[str], T]) -> T | None:
    """Return what `parse` makes of a text file, None if it is not there.

    Raises
    ------
    DataError
        If it cannot be read or is damaged.
    """
    try:
        return parse(path.read_text())
    except FileNotFoundError:
        return None
    except KeyError as error:
        raise DataError(f"{path} cannot be read: it lacks {error}") from error
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def numbers_as_text(text: str) -> dict[str, Any]:
    """Parse JSON, leaving each number as it is written."""
    content: dict[str, Any] = json.loads(text, parse_float=str, parse_int=str)
    return content


def read_table(text: str) -> Table:
    """Parse CSV; a last line that is shorter than the header is still being written."""
    header, *rows = list(csv.reader(io.StringIO(text, newline=""))) or [[]]
    if rows and len(rows[-1]) < len(header):
        rows.pop()
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise ValueError(f"row {number} has {len(row)} cells, the header {len(header)}")
    return Table(header, rows)


def _summary(text: str) -> dict[str, Any]:
    content = numbers_as_text(text)
    _ = content["status"], content["rounds"], content["seconds"]
    return content


def _by_round(text: str) -> Table:
    table = read_table(text)
    _check_complete(table, "round")
    for column in table.header:
        if column != "name":
            table.numbers(column)
    return table


def _rounds(text: str) -> Table:
    table = _by_round(text)
    for column in ("clients", "failures", "bytes_down", "bytes_up"):
        _check_complete(table, column)
    return table


def _check_complete(table: Table, column: str) -> None:
    if column not in table.header or not np.isfinite(table.numbers(column)).all():
        raise ValueError(f'column "{column}" is not there or lacks a number')


def _partition(text: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(text)
    _ = content["rule"], content["classes"]
    if not sum(client["size"] for client in content["clients"]):
        raise ValueError("no client holds a sample")
    return content


def _config(text: str) -> dict[str, Any]:
    content = tomllib.loads(text, parse_float=str)
    own = content.get("fedadb")
    if own is not None:
        if not isinstance(own, dict):
            raise ValueError(f"fedadb={own} is not a table")
        _ = own["use-lcb"], own["beta"], own["use-anchors"]
    return content


def _kept_anchors(folder: Path) -> tuple[dict[int, Mapping[str, Tensor]], list[str]]:
    """Return the anchors in ``snapshots/``, and a sentence for each file that cannot be read."""
    found, damaged = {}, []
    for server_round, kept in snapshots(folder).items():
        path = kept / "anchors.safetensors"
        if path.exists():
            try:
                found[server_round] = _anchors(path)
            except DataError as error:
                damaged.append(str(error))
    return found, damaged


def _anchors(path: Path) -> Mapping[str, Tensor]:
    try:
        content = load_file(path)
        return {name: content[name] for name in ("images", "labels", "confidences")}
    except (OSError, SafetensorError, KeyError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
