"""What a run's folder says, as text, so that a page shows each number as it stands in its file.

The one place where a run's tables are read and checked. A line without its end is still being
written, or was cut off: it does not count.
"""

import csv
import io
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedadb_app.errors import DataError

BEST_ROUNDS, LAST_ROUNDS = 5, 50
SECONDS = ("seconds_anchors", "seconds_train", "seconds_aggregate", "seconds_evaluate")
_ALWAYS_KNOWN = ("clients", "failures", "bytes_down", "bytes_up", *SECONDS)
_MAY_BE_INFINITE = ("loss", "epsilon")

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

    def total(self, column: str) -> int:
        """Return the sum of a column of whole numbers."""
        return int(self.numbers(column).sum())


@dataclass(frozen=True)
class RunFiles:
    """The files of one run; None (or nothing) for those that are not there or cannot be read.

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
    faults : Mapping[str, str]
        File name -> a sentence, for each of these files that is damaged.
    """

    folder: Path
    summary: Mapping[str, Any]
    config: Mapping[str, Any]
    rounds: Table
    class_accuracy: Table | None
    diagnostics: Table | None
    partition: Mapping[str, Any] | None
    faults: Mapping[str, str]

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
        return diagnostic(self.diagnostics, name)

    @property
    def anchors(self) -> Mapping[int, Mapping[str, Tensor]]:
        """Round -> the anchors that it was trained with, of ``snapshots/`` and of the last.

        ``images`` ``(N, channels, height, width)``, ``labels`` and ``confidences`` ``(N,)``.
        """
        return self._anchors[0]

    @property
    def damaged(self) -> Mapping[str, str]:
        """`faults`, and those of the anchors."""
        return {**self.faults, **self._anchors[1]}

    @cached_property  # not read with the rest: large, and only a page of this run needs them
    def _anchors(self) -> tuple[Mapping[int, Mapping[str, Tensor]], Mapping[str, str]]:
        found: dict[int, Mapping[str, Tensor]] = {}
        faults: dict[str, str] = {}
        last = int(self.summary["rounds"])
        for server_round, kept in [*snapshots(self.folder).items(), (last, self.folder)]:
            path = kept / "anchors.safetensors"
            if path.exists():
                try:
                    found[server_round] = _anchors(path)
                except (OSError, SafetensorError, ValueError, KeyError) as error:
                    name = str(path.relative_to(self.folder))
                    faults[name] = f"{path} cannot be read: {error}"
        return found, faults


def read_files(folder: Path) -> RunFiles:
    """Read a run's folder, finished or not.

    Raises
    ------
    DataError
        If it holds no run, or ``summary.json`` or ``rounds.csv`` cannot be read; all else that is
        damaged is named in the answer.
    """
    summary = read(folder / "summary.json", _summary)
    rounds = read(folder / "rounds.csv", _rounds)
    if summary is None or rounds is None:
        missing = "summary.json" if summary is None else "rounds.csv"
        raise DataError(f"{folder} holds no run: {missing} is not there")
    faults: dict[str, str] = {}
    class_accuracy = read_or_note(folder / "class_accuracy.csv", _by_round, faults)
    diagnostics = read_or_note(folder / "diagnostics.csv", read_diagnostics, faults)
    config = read_or_note(folder / "config.toml", _config, faults) or {}
    partition = read_or_note(folder / "partition.json", _partition, faults)
    if summary["status"] != "running":  # while it is, a file may be a round ahead of another
        no_privacy = config.get("privacy", "none") == "none"  # then each round says its drift
        unfit = _unfit(summary, rounds, class_accuracy, diagnostics, every_round=no_privacy)
        for name, wrong in unfit.items():
            faults[name] = f"{folder / name} does not hold the whole run: {wrong}"
    return RunFiles(folder, summary, config, rounds, class_accuracy, diagnostics, partition, faults)


def read_configuration(folder: Path) -> dict[str, Any]:
    """Return a run's effective values as its ``config.toml`` has them, without the versions.

    Raises
    ------
    DataError
        If the folder holds no run.
    """
    path = folder / "config.toml"
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise DataError(f"{folder} holds no run: {path} cannot be read") from error
    except ValueError as error:  # no TOML, or not even UTF-8
        raise DataError(f"{path} is damaged: {error}") from error
    values.pop("packages", None)
    return values


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
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def read_or_note(path: Path, parse: Callable[[str], T], faults: dict[str, str]) -> T | None:
    """Return as `read` does; of a damaged file nothing, and a sentence goes under its name."""
    try:
        return read(path, parse)
    except DataError as error:
        faults[path.name] = str(error)
        return None


def numbers_as_text(text: str) -> dict[str, Any]:
    """Parse JSON, leaving each number as it is written."""
    content: dict[str, Any] = json.loads(text, parse_float=str, parse_int=str)
    return content


def read_table(text: str) -> Table:
    """Parse CSV, but for a line that has no end."""
    whole = text[: text.rfind("\n") + 1]
    header, *rows = list(csv.reader(io.StringIO(whole, newline=""))) or [[]]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise ValueError(f"row {number} has {len(row)} cells, the header {len(header)}")
    return Table(header, rows)


def read_summary(folder: Path) -> dict[str, Any]:
    """Return a run's ``summary.json``, or nothing while it has none."""
    try:
        content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    except (OSError, json.JSONDecodeError):
        return {}
    return content


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

    return read(folder / "rounds.csv", parse) or ([], 0)


def accuracy_summary(accuracies: Sequence[float]) -> dict[str, float | None]:
    """Return the final accuracy, the mean of the five best rounds and of the last fifty (percent).

    With fewer evaluated rounds the means are over what there is; with none they are None.
    """
    if not accuracies:
        return {"final_accuracy": None, "best5_accuracy": None, "last50_accuracy": None}
    best = sorted(accuracies)[-BEST_ROUNDS:]
    last = accuracies[-LAST_ROUNDS:]
    return {
        "final_accuracy": accuracies[-1],
        "best5_accuracy": round(sum(best) / len(best), 2),
        "last50_accuracy": round(sum(last) / len(last), 2),
    }


def snapshots(folder: Path) -> dict[int, Path]:
    """Return the folders of what a run has kept after some of its rounds, in their order."""
    kept = [path.parent for path in (folder / "snapshots").glob("round*/model.safetensors")]
    rounds = {path: re.fullmatch(r"round([0-9]{4,})", path.name) for path in kept}
    return dict(sorted((int(match[1]), path) for path, match in rounds.items() if match))


def _summary(text: str) -> dict[str, Any]:
    content = numbers_as_text(text)
    _ = content["status"], int(content["rounds"]), content["seconds"]
    return content


def _by_round(text: str) -> Table:
    table = read_table(text)
    if table.header[:1] != ["round"] or not (np.diff([0, *table.numbers("round")]) > 0).all():
        raise ValueError("its first column is not the round, or does not rise")
    for row in table.rows:
        for column, cell in zip(table.header, row, strict=True):
            if cell and column not in _MAY_BE_INFINITE and not math.isfinite(float(cell)):
                raise ValueError(f'round {row[0]} has "{cell}" as {column}')
    return table


def _rounds(text: str) -> Table:
    table = _by_round(text)
    for column in _ALWAYS_KNOWN:
        if not np.isfinite(table.numbers(column)).all():
            raise ValueError(f'column "{column}" is not there or lacks a number')
    for column in _MAY_BE_INFINITE:
        table.numbers(column)
    return table


def diagnostic(table: Table | None, name: str) -> tuple[Floats, Floats]:
    """Return the rounds and the values of one name in ``diagnostics.csv``; none without it."""
    rows = [] if table is None else table.rows
    pairs = [(float(t), float(value)) for t, what, value in rows if what == name]
    return np.array([t for t, _ in pairs]), np.array([value for _, value in pairs])


def read_diagnostics(text: str) -> Table:
    """Parse ``diagnostics.csv``, but for a last round that is still being written."""
    table = read_table(text)
    if table.header != ["round", "name", "value"]:
        raise ValueError("its columns are not round, name and value")
    names: dict[int, set[str]] = {}
    for t, name, value in table.rows:
        float(value)
        names.setdefault(int(t), set()).add(name)
    *before, last = names or [0]
    if before and not set.intersection(*(names[t] for t in before)) <= names[last]:
        return Table(table.header, [row for row in table.rows if int(row[0]) != last])
    return table


def _partition(text: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(text)
    _, classes, clients = content["rule"], content["classes"], content["clients"]
    if not sum(client["size"] for client in clients):
        raise ValueError("no client holds a sample")
    if any("class_counts" in client for client in clients) and any(
        len(client["class_counts"]) != len(classes) or sum(client["class_counts"]) < 0
        for client in clients
    ):
        raise ValueError("a client's class_counts are not one a class")
    return content


def _config(text: str) -> dict[str, Any]:
    content = tomllib.loads(text, parse_float=str)
    if int(content.get("num-server-rounds", 1)) < 1:
        raise ValueError(f"num-server-rounds={content['num-server-rounds']}")
    own = content.get("fedadb")
    if own is not None:
        if not isinstance(own, dict):
            raise ValueError(f"fedadb={own} is not a table")
        _ = own["use-lcb"], own["beta"], own["use-anchors"]
    return content


def _anchors(path: Path) -> Mapping[str, Tensor]:
    content = load_file(path)
    images, labels, confidences = (content[n] for n in ("images", "labels", "confidences"))
    if images.ndim != 4 or images.shape[1] not in (1, 3) or not images.numel():
        raise ValueError(f"images of the shape {tuple(images.shape)}")
    if not labels.shape == confidences.shape == images.shape[:1] or labels.is_floating_point():
        raise ValueError("its labels and confidences are not one an image")
    return {"images": images, "labels": labels, "confidences": confidences}


def _unfit(
    summary: Mapping[str, Any],
    rounds: Table,
    classes: Table | None,
    diagnostics: Table | None,
    every_round: bool,
) -> dict[str, str]:
    """Return what each table of a run that has ended lacks of it.

    ``diagnostics.csv`` can only be told where `every_round` of a completed run has some.
    """
    evaluated, accuracies = rounds.known("accuracy")
    told = {"rounds": len(rounds.rows), **accuracy_summary(accuracies.tolist())}
    for key, value in told.items():
        if str(summary.get(key)) != str(value):  # both as JSON writes a number
            said = f"it says {key} = {value}, summary.json {summary.get(key)}"
            return {"rounds.csv": said}
    found: dict[str, str] = {}
    if classes is not None and classes.numbers("round").tolist() != evaluated.tolist():
        said = f"{len(classes.rows)} rows for {len(evaluated)} evaluated rounds"
        found["class_accuracy.csv"] = said
    if diagnostics is not None and every_round and summary["status"] == "completed":
        last = diagnostics.rows[-1][0] if diagnostics.rows else "0"
        if last != summary["rounds"]:
            found["diagnostics.csv"] = f"it ends with round {last}"
    return found
