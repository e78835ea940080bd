"""A run's folder: written as the run goes, complete up to the last finished round."""

import csv
import json
import math
import platform
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import tomli_w
from safetensors.torch import save_file

from fedadb_app.client_state import Ancestor
from fedadb_app.config import RunConfig, Scalar
from fedadb_app.data.arrays import ImageSchema
from fedadb_app.data.clients import SampleCounts, rule_settings
from fedadb_app.data.partition import Partition
from fedadb_app.data.prepared import ImageDataset
from fedadb_app.errors import ConfigError, FedADBError
from fedadb_app.local_training import Attachment
from fedadb_app.runs.checkpoint import Checkpoint
from fedadb_app.runs.live_view import EventFiles
from fedadb_app.runs.reader import accuracy_summary, read_accuracies

_PACKAGES = ("fedadb-app", "flwr", "ray", "torch", "torchvision", "medmnist", "numpy")

_TABLES = ("rounds.csv", "class_accuracy.csv", "diagnostics.csv")
_OWN_FILE = {"column": False}  # kept in a file of its own, not in rounds.csv

Status = Literal["running", "completed", "failed", "stopped"]


@dataclass
class RoundRecord:
    """One row of ``rounds.csv``; accuracy in percent, sizes in bytes, times in seconds."""

    round: int
    accuracy: float = math.nan
    loss: float = math.nan
    learning_rate: float = math.nan
    anchor_quality: float = math.nan
    clients: int = 0
    failures: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    seconds_anchors: float = 0.0
    seconds_train: float = 0.0
    seconds_aggregate: float = 0.0
    seconds_evaluate: float = 0.0
    epsilon: float = math.nan
    class_accuracy: Sequence[float] = field(default=(), metadata=_OWN_FILE)
    diagnostics: dict[str, float] = field(default_factory=dict, metadata=_OWN_FILE)

    def row(self) -> list[str]:
        """Return the cells as text; an unknown value is an empty cell."""
        return [_cell(name, getattr(self, name)) for name in self.header()]

    @classmethod
    def header(cls) -> list[str]:
        """Return the column names."""
        return [f.name for f in fields(cls) if f.metadata != _OWN_FILE]


def _cell(column: str, value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return ""
    if column == "accuracy":
        return f"{value:.2f}"
    return f"{value:.3f}" if column.startswith("seconds") else f"{value:.6g}"


class RunFolder:
    """The folder ``<output-dir>/<run-name>/`` of one run, open from its start to its end.

    As a context manager it writes ``summary.json`` on the way out whatever happens: `completed`,
    `failed` after an exception, `stopped` after an interruption. `stop` does the last from another
    thread. The first of these is final.

    Attributes
    ----------
    path : Path
        Where it is.
    run_id : int
        Flower's id of the run.
    resumed : Checkpoint or None
        What the run goes on from; the folder begins with that run's rounds.
    """

    def __init__(
        self,
        path: Path,
        run_id: int,
        resumed: Checkpoint | None,
        events: EventFiles | None,
        identifying: Mapping[str, Any],
    ) -> None:
        self.path = path
        self.run_id = run_id
        self.resumed = resumed
        self._events = events
        self._identifying = dict(identifying)
        self._started = time.time() - (resumed.facts.seconds if resumed else 0.0)
        self._accuracies, self._last_round = read_accuracies(path)
        self._ended = False
        # Of two threads one waits; a signal handler may come in between in the same thread.
        self._summary_lock = threading.RLock()

    @classmethod
    def create(cls, config: RunConfig, run_id: int, resumed: Checkpoint | None = None) -> Self:
        """Make the folder of a new run, with the rounds and the checkpoint of the run it resumes.

        Raises
        ------
        ConfigError
            If it cannot be written to, the run's name already holds a run, or TensorBoard is asked
            for and not installed.
        """
        base = Path(config.output_dir or "~/fedadb-runs").expanduser()
        name = config.run_name or (
            f"{config.strategy}-{Path(config.dataset).stem}-seed{config.seed}-"
            f"{time.strftime('%Y%m%d-%H%M%S')}-{run_id % 10**6:06d}"
        )
        path = base / name
        events = EventFiles(path) if config.tensorboard else None
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise ConfigError(
                    f'run-name="{name}": {path} already holds a run; choose another name or '
                    f"remove that folder"
                )
            tables = {"rounds.csv": ",".join(RoundRecord.header()) + "\n"}
            if resumed:
                tables = {name: t for name, t in resumed.facts.tables.items() if name in _TABLES}
            for table, text in tables.items():
                (path / table).write_text(text)
            if events:
                events.follow(first_round=1)
        except OSError as error:
            raise ConfigError(
                f'output-dir="{base}" cannot be written to ({error.strerror}); '
                f"set output-dir to a folder that this user may write"
            ) from error
        identifying = {
            "strategy": config.strategy,
            "dataset": config.dataset,
            "alpha": config.alpha,
            "seed": config.seed,
        }
        if resumed:
            identifying |= {
                "resumed_from": config.resume_from,
                "resumed_round": resumed.facts.round,
            }
            resumed.write(path)  # so that this folder, too, can be resumed from its first moment on
        return cls(path, run_id, resumed, events, identifying)

    def __enter__(self) -> Self:
        self.write_summary("running")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.write_summary("completed")
        elif issubclass(kind, Exception):
            known = isinstance(error, FedADBError)
            self.write_summary("failed", str(error) if known else f"{kind.__name__}: {error}")
        else:
            self.stop()
        if self._events:
            self._events.close()

    def stop(self) -> None:
        """Record that the process is about to end although the run has not.

        In a simulation the ServerApp is a thread that is not told of ``flwr stop``: the process
        ends around it.
        """
        self.write_summary(
            "stopped",
            f"ended from outside after round {self._last_round}: flwr stop, a signal, or a crash "
            f"of Flower itself (flwr log says which)",
        )

    @property
    def finished_rounds(self) -> int:
        """How many rounds the run began with: those of the run it resumes."""
        return self.resumed.facts.round if self.resumed else 0

    @property
    def ancestors(self) -> tuple[Ancestor, ...]:
        """The runs that this one continues."""
        return self.resumed.lineage if self.resumed else ()

    @property
    def seconds(self) -> float:
        """How long its rounds took, those it began with included."""
        return time.time() - self._started

    def tables(self) -> dict[str, str]:
        """Return the text of each table so far."""
        paths = {name: self.path / name for name in _TABLES}
        return {name: path.read_text() for name, path in paths.items() if path.exists()}

    def write_config(self, config: RunConfig, own: Mapping[str, Scalar]) -> None:
        """Write every effective value and the versions it ran with."""
        shared = config.model_dump(by_alias=True)
        tables = {**shared, config.strategy: dict(own), "packages": _versions()}
        (self.path / "config.toml").write_bytes(tomli_w.dumps(tables).encode())

    def write_partition(
        self, partition: Partition, config: RunConfig, dataset: ImageDataset
    ) -> None:
        """Write who holds what: a row a client, the rule, the seed and the assignment's hash."""
        labels, classes = dataset.train_labels, dataset.num_classes
        self._identifying["clients"] = len(partition.indices)
        manifest = {
            "rule": config.partition,
            **rule_settings(config),
            "seed": config.seed,
            "hash": partition.hash,
            "draws": partition.draws,
            "moved": partition.moved,
            "classes": list(dataset.class_names),
            "clients": [
                {
                    "size": len(part),
                    "class_counts": np.bincount(labels[part], minlength=classes).tolist(),
                }
                for part in partition.indices
            ],
        }
        self._write_json("partition.json", manifest)

    def write_nodes(self, stated: Mapping[int, SampleCounts], schema: ImageSchema) -> None:
        """Write which nodes have been connected, with nothing of their data but how much it is."""
        self._identifying["clients"] = len(stated)
        clients = [{"client": client, "size": stated[client].train} for client in sorted(stated)]
        self._write_json(
            "partition.json",
            {"rule": "nodes", "classes": list(schema.class_names), "clients": clients},
        )

    def add_round(self, record: RoundRecord, class_names: Sequence[str]) -> None:
        """Append a finished round and flush it to disk."""
        self._append("rounds.csv", record.row())
        self._last_round = record.round
        if record.class_accuracy:
            if not (self.path / "class_accuracy.csv").exists():
                self._append("class_accuracy.csv", ["round", *class_names])
            cells = [_cell("accuracy", a) for a in record.class_accuracy]
            self._append("class_accuracy.csv", [str(record.round), *cells])
        if not math.isnan(record.accuracy):
            self._accuracies.append(float(_cell("accuracy", record.accuracy)))
        for name, value in sorted(record.diagnostics.items()):
            if not (self.path / "diagnostics.csv").exists():
                self._append("diagnostics.csv", ["round", "name", "value"])
            self._append("diagnostics.csv", [str(record.round), name, f"{value:.6g}"])
        if self._events:
            self._events.follow(record.round)
        self.write_summary("running")

    def write_tensors(self, name: str, content: Attachment) -> None:
        """Write ``<name>.safetensors``, whole or not at all; numbers go into its metadata."""
        tensors = {key: t.detach().cpu().contiguous() for key, t in content.tensors.items()}
        metadata = {key: repr(value) for key, value in content.scalars.items()}
        temporary = self.path / f"{name}.safetensors.tmp"
        save_file(tensors, temporary, metadata=metadata)
        temporary.replace(temporary.with_suffix(""))

    def write_snapshot(self, server_round: int, contents: Mapping[str, Attachment]) -> None:
        """Keep what the folder keeps at the end as it is after a round, for `fedadb analyse`.

        All of it or nothing; it takes the place of what was kept of that round.
        """
        kept = self.path / "snapshots" / f"round{server_round:04}"
        temporary = kept.with_suffix(".tmp")
        temporary.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            self.write_tensors(str(temporary / name), content)
        if kept.exists():
            shutil.rmtree(kept)
        temporary.replace(kept)

    def write_summary(self, status: Status, reason: str = "") -> None:
        """Write the run's standing unless its end is written; `reason` says why it ended."""
        with self._summary_lock:
            if self._ended:
                return
            self._ended = status != "running"
            self._write_json(
                "summary.json",
                {
                    "status": status,
                    **({"reason": reason} if reason else {}),
                    "rounds": self._last_round,
                    **accuracy_summary(self._accuracies),
                    "seconds": round(self.seconds, 3),
                    **self._identifying,
                },
            )

    def _append(self, name: str, row: Sequence[str]) -> None:
        with (self.path / name).open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(row)

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        temporary = self.path / f"{name}.tmp"
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        temporary.replace(self.path / name)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # an app that runs from its FAB need not be installed
            continue
    return found
