"""`python -m benchmarks.jobs`: how much faster a table is made with several runs side by side.

`fedadb compare` with one job of one worker and with `--jobs` jobs of one worker, in turn, each into
a folder of its own, by the clock from the command's start to its end. A run is FedAvg or FedProx
with LeNet. That the results are the same is checked. Leave the machine alone meanwhile.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedadb_app.assignments import as_assignments
from fedadb_app.own_superlink import own_superlink


def main(
    dataset: Annotated[str, typer.Option(help="As in the run configuration.")] = "pathmnist",
    data_dir: Annotated[str, typer.Option(help="As in the run configuration.")] = "",
    clients: Annotated[int, typer.Option(help="K; five train each round.")] = 100,
    jobs: int = 2,
    seeds: Annotated[int, typer.Option(help="Twice as many runs are in a table.")] = 2,
    rounds: int = 20,
    repetitions: int = 3,
) -> None:
    """Measure in turn, and print the medians and their ratio."""
    values = as_assignments(
        {
            "dataset": dataset,
            "data-dir": data_dir,
            "model": "lenet",
            "num-server-rounds": rounds,
            "fraction-train": min(1.0, 5 / clients),
        }
    )
    what = ["--strategies", "fedavg,fedprox", "--seeds", ",".join(map(str, range(seeds)))]
    what += ["-c", values, "--num-supernodes", str(clients), "--workers", "1"]
    measured: dict[int, list[float]] = {1: [], jobs: []}
    with tempfile.TemporaryDirectory(prefix="fedadb-jobs-") as name:
        for repetition in range(repetitions):
            tables = []
            for number, found in measured.items():
                folder = Path(name) / f"{repetition}-{number}"
                found.append(_seconds(folder, number, what))
                tables.append(_accuracies(folder))
            if len({tuple(table) for table in tables}) > 1:
                sys.exit(f"with {jobs} jobs the results are others than with one")
    console = Console()
    for number, found in measured.items():
        shown = ", ".join(f"{seconds:.1f}" for seconds in found)
        console.print(f"{number} at a time: {statistics.median(found):.1f} s (each: {shown})")
    ratio = statistics.median(measured[1]) / statistics.median(measured[jobs])
    table = f"{2 * seeds} runs of {rounds} rounds, {jobs} at a time"
    console.print(f"{table}: {ratio:.2f} times as fast")


def _seconds(folder: Path, jobs: int, what: list[str]) -> float:
    """Make a table, and return how long that took."""
    folder.mkdir(parents=True)
    command = [Path(sys.executable).parent / "fedadb", "compare", "--output", folder / "table"]
    # one job uses the user's SuperLink: here one that has just started, as those of several have
    begin = time.perf_counter()
    with own_superlink(folder, folder / "superlink.log") as home:
        done = subprocess.run(
            [*command, *what, "--jobs", str(jobs)],
            env={**os.environ, "FLWR_HOME": str(home)},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - begin
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return seconds


def _accuracies(folder: Path) -> list[str]:
    """Return what a table's runs came to, which must not depend on the jobs."""
    lines = (folder / "table" / "comparison.csv").read_text().splitlines()
    return [",".join(line.split(",")[:7]) for line in lines]


if __name__ == "__main__":
    typer.run(main)
