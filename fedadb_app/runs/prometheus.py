"""How the runs below a folder stand, as Prometheus reads it: each scrape reads their files anew."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from fedadb_app.errors import DataError
from fedadb_app.runs.reader import RunFiles, read_files
from fedadb_app.runs.record import ROUNDS
from fedadb_app.runs.summary import SUMMARY, Status
from fedadb_app.runs.tables import SECONDS

_FACTS = ("strategy", "dataset", "seed", "clients")


class RunsCollector(Collector):
    """The runs in the folders directly below one, finished or not, by the folder's name.

    A run whose ``summary.json`` or ``rounds.csv`` is damaged is counted as such and has no other
    values; the others keep theirs.

    Parameters
    ----------
    output_dir : Path
        The ``output-dir`` of the runs.
    """

    def __init__(self, output_dir: Path) -> None:
        self._output_dir = output_dir

    def collect(self) -> Iterator[Metric]:
        """Read every run's files.

        Raises
        ------
        OSError
            If the folder of the runs itself cannot be listed; the scrape then fails.
        """
        damaged = GaugeMetricFamily(
            "fedadb_damaged_files",
            "Files of the run that cannot be read; `fedadb report` names them.",
            labels=["run"],
        )
        runs: list[tuple[str, RunFiles]] = []
        for folder in sorted(self._output_dir.iterdir()):
            name = _label(os.fsencode(folder.name).decode(errors="replace"))
            if not (folder / SUMMARY).exists():  # no run, or one whose first file is not there yet
                continue
            try:
                files = read_files(folder)
            except DataError:
                damaged.add_metric([name], 1)
            else:
                damaged.add_metric([name], len(files.faults))
                runs.append((name, files))
        yield damaged
        yield from _families(runs)


def _families(runs: list[tuple[str, RunFiles]]) -> Iterator[Metric]:
    info = InfoMetricFamily("fedadb_run", "What the run is.", labels=["run"])
    status = _gauge("status", "1 for how the run stands, 0 for how it does not.", "status")
    finished = _gauge("round", "The last finished round.")
    planned = _gauge("rounds_planned", "Rounds that the run was configured to have.")
    accuracy = _gauge("accuracy_percent", "Accuracy of the last round that was evaluated.")
    clients = _gauge("clients", "Clients whose update was used in the last finished round.")
    epsilon = _gauge("epsilon", "Privacy spent by the last finished round, where it is counted.")
    idle = _gauge("seconds_since_last_round", "Since a round ended or, before the first, began.")
    failures = _counter("failures", "Failed or refused replies, all finished rounds together.")
    sent = _counter("bytes", "Bytes of messages, all finished rounds together.", "direction")
    spent = _counter("seconds", "Seconds of all finished rounds together, by step.", "step")
    for run, files in runs:
        rounds = files.rounds
        facts = {key: _label(files.summary[key]) for key in _FACTS if key in files.summary}
        info.add_metric([run], facts)
        for each in get_args(Status):
            status.add_metric([run, each], files.summary["status"] == each)
        finished.add_metric([run], rounds.numbers("round")[-1] if rounds.rows else 0)
        planned.add_metric([run], files.num_rounds)
        for family, column in (accuracy, "accuracy"), (clients, "clients"), (epsilon, "epsilon"):
            known = rounds.known(column)[1]
            if len(known):
                family.add_metric([run], known[-1])
        idle.add_metric([run], max(0.0, time.time() - (files.folder / ROUNDS).stat().st_mtime))
        failures.add_metric([run], rounds.total("failures"))
        for direction in ("down", "up"):
            sent.add_metric([run, direction], rounds.total(f"bytes_{direction}"))
        for column in SECONDS:
            step = column.removeprefix("seconds_")
            spent.add_metric([run, step], rounds.numbers(column).sum())
    yield from (info, status, finished, planned, accuracy, clients, epsilon, idle)
    yield from (failures, sent, spent)


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"fedadb_{name}", meaning, labels=["run", *labels])


def _counter(name: str, meaning: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"fedadb_{name}", meaning, labels=["run", *labels])


def _label(value: object) -> str:
    """Return text that UTF-8 can hold, whatever a damaged file has."""
    return str(value).encode(errors="replace").decode()
