"""Trials without Flower: each run's validation accuracy follows from its values alone."""

import json
import math
import os
import random
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from helpers import REPOSITORY, write_run

from fedadb_app.comparison import running
from fedadb_app.comparison.running import Outcome
from fedadb_app.tuning.plan import Tuning
from fedadb_app.tuning.running import run_tuning

ROUNDS = 8
SHARED = ["-c", 'validation="0.1" num-server-rounds=8', "--strategies", "fedavg,fedprox"]
"""Options of a small tuning, and of a comparison of the same runs."""


def peak(values: dict[str, Any]) -> float:
    """The accuracy that a run comes to: best at a learning rate of 0.03, and for a small mu."""
    off = abs(math.log(values.get("learning-rate", 0.01) / 0.03))
    return round(90 - 12 * off - 2 * values.get("fedprox.mu", 0.0), 4)


def curve(values: dict[str, Any], rounds: int = ROUNDS) -> list[float]:
    """Its validation accuracy by round, until ``must-reach`` ends it; written for the test."""
    ends = [pair.split(":") for pair in str(values.get("must-reach", "")).split(",") if pair]
    found: list[float] = []
    for number in range(1, rounds + 1):
        found.append(round(peak(values) * number / rounds, 4))
        if any(int(r) == number and found[-1] < float(least) for r, least in ends):
            break
    return found


def write_trial(folder: Path, values: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Write what the run of a trial leaves."""
    known = curve(values)
    write_run(folder, known)
    rows = [f"{n},{part},accuracy,,{v:.6g}" for n, v in enumerate(known, 1) for part in PARTS]
    text = "\n".join(["round,part,metric,class,value", *rows]) + "\n"
    (folder / "metrics.csv").write_text(text)
    (folder / "config.toml").write_text(tomli_w.dumps({**defaults, **values}))


PARTS = ("test", "val")


class Cells:
    """Stands for Flower: `ends` says how runs end that do not come to their end."""

    def __init__(self, patch: pytest.MonkeyPatch, ends: dict[str, str] | None = None) -> None:
        self.started: list[str] = []
        self.ends = ends or {}
        self.stop_after = math.inf
        self.pause = 0.0
        self._lock = threading.Lock()
        patch.setattr(running, "FlowerRun", self.start)
        patch.setattr(running, "own_superlink", lambda owner, log: nullcontext("home"))
        patch.setattr("os.cpu_count", lambda: 4)

    def start(self, app: Path, values: dict[str, Any], simulation: Any, home: Any = None) -> Any:
        with self._lock:
            self.started.append(values["run-name"])
            if len(self.started) > self.stop_after:
                raise KeyboardInterrupt
        return values

    def watch(self, values: dict[str, Any], folder: Path, cell: Any, stop: Any = None) -> Any:
        time.sleep(self.pause * random.random())  # which of several ends first is anybody's guess
        end = self.ends.get(cell.name, "completed")
        if end == "lost":  # Flower's process has died, and the run says nothing of its end
            write_run(folder, [10.0], status="running")
            return "finished:failed", "the process is gone"
        if end == "without nodes":
            write_run(folder, [], status="failed")
            return "finished:failed", "0 SuperNodes are connected"
        write_trial(folder, values, {})
        if end == "failed":
            summary = json.loads((folder / "summary.json").read_text())
            failed = {**summary, "status": "failed", "reason": "weights are not finite"}
            (folder / "summary.json").write_text(json.dumps(failed))
            return "finished:failed", ""
        return "finished:completed", ""


def main() -> None:
    """`fedadb` with trials that take a moment, in a process of its own, which can be killed."""
    from fedadb_app.cli.main import main as fedadb

    with pytest.MonkeyPatch.context() as patch:
        cells = Cells(patch)
        cells.pause = float(os.environ["PAUSE"])

        def watch(progress: Any, run: Any, folder: Any, rounds: Any, name: str, *_: Any) -> Any:
            sys.stdout.write(f"{name}\n")
            sys.stdout.flush()
            return cells.watch(run, folder, type("Cell", (), {"name": name}))

        patch.setattr("fedadb_app.cli.comparison_progress.watch", watch)
        sys.argv[0] = "fedadb"
        fedadb()


if __name__ == "__main__":
    main()


def run(cells: "Cells", folder: Path, tuning: Tuning, jobs: int = 1) -> list[Outcome]:
    """Run a whole tuning."""
    return list(run_tuning(folder, tuning, REPOSITORY, cells.watch, jobs))
