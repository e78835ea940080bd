"""What is handed over of a run: its configuration, its series, its numbers, its files."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from fedadb_app.assignments import flatten
from fedadb_app.config import Scalar
from fedadb_app.errors import ConfigError, DataError
from fedadb_app.runs.model_file import MODEL
from fedadb_app.runs.predictions import CONFUSION
from fedadb_app.runs.reader import CONFIG, RunFiles, read_configuration, read_files
from fedadb_app.runs.record import ROUNDS, TABLES
from fedadb_app.runs.series import cells
from fedadb_app.runs.sites import SITES
from fedadb_app.runs.summary import SUMMARY

_MODELS = ("model.safetensors", "best.safetensors", MODEL)
_NUMBERS = ("final_accuracy", "best5_accuracy", "last50_accuracy", "rounds", "seconds", "clients")
_FACTS = ("strategy", "dataset", "seed", "status", "reason")


@dataclass(frozen=True)
class Handed:
    """A run as a tracker takes it.

    Attributes
    ----------
    folder : Path
        Where it lies; its name is the run's.
    digest : str
        SHA-256 that tells this run from every other, wherever its folder lies.
    parameters : Mapping[str, Scalar]
        Every effective value of the run configuration.
    series : Sequence[tuple[int, str, float]]
        Round, tag and value of each cell of its tables, as `cells` names them.
    numbers : Mapping[str, float]
        What the summary says: accuracies and those of the chosen round in percent, others as in
        `fedadb_app.metrics`; rounds, seconds, clients.
    tags : Mapping[str, str]
        Method, data set, seed, how it ended, and the code and the machine of ``config.toml``.
    files : Sequence[Path]
        What is kept beside the numbers.
    """

    folder: Path
    digest: str
    parameters: Mapping[str, Scalar]
    series: Sequence[tuple[int, str, float]]
    numbers: Mapping[str, float]
    tags: Mapping[str, str]
    files: Sequence[Path]

    @property
    def completed(self) -> bool:
        """Whether the run went as far as it was meant to."""
        return self.tags["status"] == "completed"

    @property
    def commit(self) -> str:
        """The Git commit of its code; empty where the run does not know it."""
        found = re.match(r"[0-9a-f]{40}\b", self.tags.get("git", ""))
        return found.group() if found else ""


def read_handed(folder: Path, models: bool) -> Handed:
    """Read what a run's folder hands over.

    Parameters
    ----------
    folder : Path
        Of a run that has ended, well or not.
    models : bool
        Whether its model files are handed over, too.

    Raises
    ------
    DataError
        If it holds no run, the run has not ended, a file is damaged, or there is no model although
        it is asked for.
    """
    run = read_files(folder)
    if run.summary["status"] == "running":
        raise DataError(
            f"{folder}: the run has not ended, or was killed: its status is running, and only a "
            f"whole run is handed over"
        )
    for fault in run.faults.values():
        raise DataError(fault)
    names = [CONFIG, SUMMARY, *TABLES, CONFUSION, SITES]
    if models:
        if not (folder / _MODELS[0]).exists():
            raise DataError(f"--models: {folder / _MODELS[0]} is not there")
        names += _MODELS
    return Handed(
        folder=folder,
        digest=_digest(folder),
        parameters=flatten(read_configuration(folder)),
        series=list(cells(folder)),
        numbers=_numbers(run),
        tags={name: str(run.summary[name]) for name in _FACTS if name in run.summary}
        | {name: str(value) for name, value in run.config.get("origin", {}).items()},
        files=[folder / name for name in names if (folder / name).exists()],
    )


def _digest(folder: Path) -> str:
    """Return what no two runs share: the times in these files alone differ."""
    contents = [(folder / name).read_bytes() for name in (CONFIG, ROUNDS, SUMMARY)]
    return hashlib.sha256(b"\n".join(contents)).hexdigest()


def _numbers(run: RunFiles) -> dict[str, float]:
    said = {name: run.summary.get(name) for name in _NUMBERS}
    chosen = run.summary.get("selection", {}).get("chosen")
    if chosen:
        said |= {"chosen_round": chosen["round"], "chosen_value": chosen["value"]}
        said |= {f"chosen_{name}": value for name, value in chosen["test"].items()}
    return {name: float(value) for name, value in said.items() if value is not None}


def library(tracker: str) -> Any:  # noqa: ANN401 - its types are known where it is installed
    """Import a tracker's library, an extra of the same name.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    try:
        return import_module(tracker)
    except ImportError as error:
        raise ConfigError(
            f"--to {tracker} needs its library in this environment ({error}): "
            f'pip install "fedadb-app[{tracker}]"'
        ) from error
