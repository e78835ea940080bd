"""A run's folder: written as the run goes, complete up to the last finished round."""

import json
import math
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from safetensors.torch import save

from fedadb_app.client_state import Ancestor
from fedadb_app.config import RunConfig, Scalar
from fedadb_app.data.arrays import ImageSchema
from fedadb_app.data.clients import SampleCounts
from fedadb_app.data.partition import Partition
from fedadb_app.data.prepared import ImageDataset
from fedadb_app.errors import ConfigError, FedADBError
from fedadb_app.local_training import Attachment
from fedadb_app.runs.atomic import move, replace, sync
from fedadb_app.runs.checkpoint import Checkpoint
from fedadb_app.runs.live_view import EventFiles
from fedadb_app.runs.origin import effective_values, origin
from fedadb_app.runs.partition_file import PARTITION, of_nodes, of_partition
from fedadb_app.runs.reader import CONFIG
from fedadb_app.runs.record import (
    CLASS_ACCURACY,
    DIAGNOSTICS,
    DIAGNOSTICS_HEADER,
    METRICS,
    METRICS_HEADER,
    ROUNDS,
    TABLES,
    RoundRecord,
    cell,
)
from fedadb_app.runs.summary import SUMMARY, Status, accuracy_summary, selection_summary
from fedadb_app.runs.tables import append_rows, read_accuracies

_HEADER = ",".join(RoundRecord.header()) + "\n"


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
    chosen : Mapping[str, Any]
        For the summary: the round that validation has chosen so far, and what is said of it.
    personalised : Mapping[str, Any]
        For the summary: what personalisation has changed, per head.
    ended_early : str
        Why a run that goes well has fewer rounds than it was asked for; empty where it has all.
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
        self.chosen: Mapping[str, Any] = {}
        self.personalised: Mapping[str, Any] = {}
        self.ended_early = ""
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
        path = folder_of(config, run_id)
        events = EventFiles(path) if config.tensorboard else None
        _make(path, resumed.facts.tables if resumed else {ROUNDS: _HEADER})
        if events:
            events.follow(first_round=1)
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

    def identify(self, **digests: str) -> None:
        """Keep in the summary which images the server has, and which weights it began with."""
        self._identifying |= digests

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
            self.write_summary("completed", self.ended_early)
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
        return {path.name: path.read_text() for path in _tables_in(self.path)}

    def write_config(self, config: RunConfig, own: Mapping[str, Scalar]) -> None:
        """Write every effective value, the versions it ran with, the code and the machine."""
        told = effective_values(config, own, origin(config.device))
        replace(self.path / CONFIG, told.encode())

    def write_partition(
        self, partition: Partition, config: RunConfig, dataset: ImageDataset
    ) -> None:
        """Write who holds what of a data set."""
        self._identifying["clients"] = len(partition.indices)
        _write_json(self.path / PARTITION, of_partition(partition, config, dataset))

    def write_nodes(self, stated: Mapping[int, SampleCounts], schema: ImageSchema) -> None:
        """Write which nodes with their own data have been connected."""
        self._identifying["clients"] = len(stated)
        _write_json(self.path / PARTITION, of_nodes(stated, schema))

    def add_round(self, record: RoundRecord, class_names: Sequence[str]) -> None:
        """Append a finished round; who reads along sees it at once."""
        append_rows(self.path / ROUNDS, RoundRecord.header(), [record.row()])
        self._last_round = record.round
        if classes := record.class_row():
            append_rows(self.path / CLASS_ACCURACY, ["round", *class_names], [classes])
        append_rows(self.path / DIAGNOSTICS, DIAGNOSTICS_HEADER, record.diagnostic_rows())
        append_rows(self.path / METRICS, METRICS_HEADER, record.metric_rows(class_names))
        if not math.isnan(record.accuracy):
            self._accuracies.append(float(cell("accuracy", record.accuracy)))
        if self._events:
            self._events.follow(record.round)
        self.write_summary("running")

    def write_tensors(self, name: str, content: Attachment) -> None:
        """Write ``<name>.safetensors``; numbers go into its metadata."""
        tensors = {key: t.detach().cpu().contiguous() for key, t in content.tensors.items()}
        metadata = {key: repr(value) for key, value in content.scalars.items()}
        replace(self.path / f"{name}.safetensors", save(tensors, metadata))

    def write_snapshot(self, server_round: int, contents: Mapping[str, Attachment]) -> None:
        """Keep what the folder keeps at the end as it is after a round, for `fedadb analyse`.

        All of it or nothing; it takes the place of what was kept of that round.
        """
        kept = self.path / "snapshots" / f"round{server_round:04}"
        unfinished = kept.with_suffix(".tmp")
        shutil.rmtree(unfinished, ignore_errors=True)
        for name, content in contents.items():
            self.write_tensors(str(unfinished / name), content)
        move(unfinished, kept)

    def write_summary(self, status: Status, reason: str = "") -> None:
        """Write the run's standing unless its end is written; `reason` says why it ended."""
        with self._summary_lock:
            if self._ended:
                return
            self._ended = status != "running"
            if self._ended:
                for path in _tables_in(self.path):  # what the last summary counts must outlive it
                    sync(path)
            _write_json(
                self.path / SUMMARY,
                {
                    "status": status,
                    **({"reason": reason} if reason else {}),
                    "rounds": self._last_round,
                    **accuracy_summary(self._accuracies),
                    "selection": selection_summary(self.chosen),
                    **({"personalised": self.personalised} if self.personalised else {}),
                    "seconds": round(self.seconds, 3),
                    **self._identifying,
                },
            )


def folder_of(config: RunConfig, run_id: int) -> Path:
    """Return where a run's folder is made; without ``run-name`` no two runs share one."""
    name = config.run_name or (
        f"{config.short_name}-{time.strftime('%Y%m%d-%H%M%S')}-{run_id % 10**6:06d}"
    )
    return Path(config.output_dir or "~/fedadb-runs").expanduser() / name


def _tables_in(folder: Path) -> list[Path]:
    return [path for name in TABLES if (path := folder / name).exists()]


def _make(path: Path, tables: Mapping[str, str]) -> None:
    """Make a run's folder with the tables that it begins with."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise ConfigError(
                f'run-name="{path.name}": {path} already holds a run; choose another name or '
                f"remove that folder"
            )
        for name in TABLES:
            if name in tables:
                replace(path / name, tables[name].encode())
    except OSError as error:
        raise ConfigError(
            f'output-dir="{path.parent}" cannot be written to ({error.strerror}); '
            f"set output-dir to a folder that this user may write"
        ) from error


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    replace(path, (json.dumps(content, indent=1) + "\n").encode())
