"""What a run's folder holds, finished or not: its files read together, each fault a sentence.

Tables and summaries keep their numbers as text, so that a page shows each as it stands in its file.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedadb_app.errors import DataError
from fedadb_app.runs.partition_file import PARTITION, parse_partition
from fedadb_app.runs.record import CLASS_ACCURACY, DIAGNOSTICS, METRICS, ROUNDS
from fedadb_app.runs.sites import SITES, read_sites
from fedadb_app.runs.summary import SUMMARY, accuracy_summary, parse_summary
from fedadb_app.runs.tables import (
    Floats,
    Table,
    diagnostic,
    metric,
    read_by_round,
    read_diagnostics,
    read_metrics,
    read_rounds,
)
from fedadb_app.runs.text_files import read, read_or_note

CONFIG = "config.toml"


@dataclass(frozen=True)
class RunFiles:
    """The files of one run; None (or nothing) for those that are not there or cannot be read.

    Attributes
    ----------
    folder : Path
        Where they lie.
    summary, config : Mapping[str, Any]
        Values of ``summary.json`` and ``config.toml``, numbers as text.
    rounds, class_accuracy, diagnostics, metrics : Table or None
        The tables.
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
    metrics: Table | None = None

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

    @property
    def chosen_round(self) -> int:
        """The round that ``select-by`` chose; 0 where none was."""
        return int(self.summary.get("selection", {}).get("chosen", {}).get("round", 0))

    def class_counts(self) -> npt.NDArray[np.int64] | None:
        """Return samples per client and class, ``(K, C)``; None where only the nodes know."""
        clients = [] if self.partition is None else self.partition["clients"]
        if not clients or "class_counts" not in clients[0]:
            return None
        return np.array([client["class_counts"] for client in clients])

    def diagnostic(self, name: str) -> tuple[Floats, Floats]:
        """Return the rounds and the values of one name in ``diagnostics.csv``."""
        return diagnostic(self.diagnostics, name)

    def metric(self, part: str, name: str) -> dict[int, float]:
        """Return round -> value of a metric of all images of a part, where it is known."""
        return metric(self.metrics, part, name)

    def sites(self) -> Table | None:
        """Return ``sites.csv``, of the last round in which clients evaluated; None without one.

        Raises
        ------
        DataError
            If it is damaged.
        """
        return read(self.folder / SITES, read_sites)

    def kept(self, name: str) -> Mapping[int, Path]:
        """Return the round and the path of each kept file of a name: of snapshots, and the last."""
        folders = [*snapshots(self.folder).items(), (int(self.summary["rounds"]), self.folder)]
        paths = [(t, folder / f"{name}.safetensors") for t, folder in folders]
        return {t: path for t, path in paths if path.exists()}  # of one round the folder's own


def read_files(folder: Path) -> RunFiles:
    """Read a run's folder, finished or not.

    Raises
    ------
    DataError
        If it holds no run, or ``summary.json`` or ``rounds.csv`` cannot be read; all else that is
        damaged is named in the answer.
    """
    summary = read(folder / SUMMARY, parse_summary)
    rounds = read(folder / ROUNDS, read_rounds)
    if summary is None or rounds is None:
        missing = SUMMARY if summary is None else ROUNDS
        raise DataError(f"{folder} holds no run: {missing} is not there")
    faults: dict[str, str] = {}
    class_accuracy = read_or_note(folder / CLASS_ACCURACY, read_by_round, faults)
    diagnostics = read_or_note(folder / DIAGNOSTICS, read_diagnostics, faults)
    metrics = read_or_note(folder / METRICS, read_metrics, faults)
    config = read_or_note(folder / CONFIG, _config, faults) or {}
    partition = read_or_note(folder / PARTITION, parse_partition, faults)
    if summary["status"] != "running":  # while it is, a file may be a round ahead of another
        no_privacy = config.get("privacy", "none") == "none"  # then each round says its drift
        unfit = _unfit(
            summary, rounds, class_accuracy, diagnostics, metrics, every_round=no_privacy
        )
        for name, wrong in unfit.items():
            faults[name] = f"{folder / name} does not hold the whole run: {wrong}"
    tables = (rounds, class_accuracy, diagnostics)
    return RunFiles(folder, summary, config, *tables, partition, faults, metrics)


def read_configuration(folder: Path) -> dict[str, Any]:
    """Return a run's effective values as its ``config.toml`` has them, without versions and origin.

    Raises
    ------
    DataError
        If the folder holds no run.
    """
    path = folder / CONFIG
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise DataError(f"{folder} holds no run: {path} cannot be read") from error
    except ValueError as error:  # no TOML, or not even UTF-8
        raise DataError(f"{path} is damaged: {error}") from error
    for told in ("packages", "origin"):
        values.pop(told, None)
    return values


def snapshots(folder: Path) -> dict[int, Path]:
    """Return the folders of what a run has kept after some of its rounds, in their order."""
    kept = [path.parent for path in (folder / "snapshots").glob("round*/model.safetensors")]
    rounds = {path: re.fullmatch(r"round([0-9]{4,})", path.name) for path in kept}
    return dict(sorted((int(match[1]), path) for path, match in rounds.items() if match))


def _config(text: str) -> dict[str, Any]:
    content = tomllib.loads(text, parse_float=str)
    if int(content.get("num-server-rounds", 1)) < 1:
        raise ValueError(f"num-server-rounds={content['num-server-rounds']}")
    return content


def read_kept(path: Path) -> dict[str, Tensor]:
    """Return the tensors that a run keeps in a file: its global model, or what its method adds.

    Raises
    ------
    DataError
        If the file is damaged or cannot be read.
    """
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _unfit(
    summary: Mapping[str, Any],
    rounds: Table,
    classes: Table | None,
    diagnostics: Table | None,
    metrics: Table | None,
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
            return {ROUNDS: said}
    found: dict[str, str] = {}
    if classes is not None and classes.numbers("round").tolist() != evaluated.tolist():
        said = f"{len(classes.rows)} rows for {len(evaluated)} evaluated rounds"
        found[CLASS_ACCURACY] = said
    if metrics is not None and set(metrics.numbers("round")) != set(evaluated):
        said = f"{len(set(metrics.numbers('round')))} rounds of {len(evaluated)} evaluated ones"
        found[METRICS] = said
    if diagnostics is not None and every_round and summary["status"] == "completed":
        last = diagnostics.rows[-1][0] if diagnostics.rows else "0"
        if last != summary["rounds"]:
            found[DIAGNOSTICS] = f"it ends with round {last}"
    return found
