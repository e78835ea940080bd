"""`python -m benchmarks.simulation`: the app's simulation against a bare PyTorch loop.

Each repetition runs the bare loop and then each method of the app, on the same data, partition,
participants, local steps and evaluation, with the same number of worker processes. What counts is
the median of seconds a round over all repetitions (the first round, which loads and compiles, is
left out on both sides), and its ratio to the bare loop's. Leave the machine alone meanwhile.
"""

import json
import os
import platform
import statistics
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.app import SECONDS, Measured, measure, own_superlink
from benchmarks.bare import bare_rounds
from fedadb_app.config import RunConfig, Scalar
from fedadb_app.flower_run import Simulation

BARE = "bare loop"


def main(
    dataset: Annotated[str, typer.Option(help="As in the run configuration.")] = "pathmnist",
    data_dir: Annotated[str, typer.Option(help="As in the run configuration.")] = "",
    model: Annotated[str, typer.Option(help="lenet, cnn or resnet18.")] = "lenet",
    clients: Annotated[int, typer.Option(help="K.")] = 100,
    strategies: Annotated[str, typer.Option(help="Names with commas.")] = "fedavg,fedadb",
    participants: Annotated[int, typer.Option(help="Clients a round.")] = 5,
    rounds: int = 10,
    repetitions: int = 3,
    precision: str = "fp32",
    profile: Annotated[bool, typer.Option(help="Show where a round's time goes.")] = False,
    bare: Annotated[bool, typer.Option(help="Run the bare loop too.")] = True,
    output: Annotated[Path, typer.Option(help="JSON file of all measured values.")] = Path(
        "benchmark.json"
    ),
) -> None:
    """Measure, print a table, and write every value to a file."""
    workers = os.cpu_count() or 1
    values: dict[str, Scalar] = {
        "dataset": dataset,
        "data-dir": data_dir,
        "model": model,
        "precision": precision,
        "num-server-rounds": rounds,
        "fraction-train": participants / clients,
    }
    measured: dict[str, list[Measured]] = defaultdict(list)
    bare_seconds: list[float] = []
    with own_superlink() as superlink:
        for _ in range(repetitions):
            if bare:
                bare_seconds += bare_rounds(RunConfig.model_validate(values), clients, workers)[1:]
            for strategy in strategies.split(","):
                run = measure(superlink, {**values, "strategy": strategy}, Simulation(clients))
                measured[strategy].append(run)
    console = Console(width=130)
    machine = platform.processor() or platform.machine()
    console.print(
        f"{dataset}, {model}, {precision}, K={clients}, {participants} a round, alpha=0.1, "
        f"{workers} workers, {repetitions} x {rounds} rounds; {machine}, torch {torch.__version__}"
    )
    console.print(_times(bare_seconds, measured))
    if profile:
        console.print(_profile(measured))
    content = {
        "when": time.strftime("%Y-%m-%d %H:%M:%S"),
        "configuration": {**values, "clients": clients, "workers": workers},
        "bare_seconds": bare_seconds,
        "app": {name: [asdict(run) for run in runs] for name, runs in measured.items()},
    }
    output.write_text(json.dumps(content, indent=1) + "\n")
    console.print(f"all values: {output}")


def _times(bare: list[float], measured: dict[str, list[Measured]]) -> Table:
    columns = (
        "s/round: min",
        "median",
        "max",
        "to bare",
        "to first",
        "start-up s",
        "MiB: round 10",
        "peak",
        "with files",
        "MB/round",
    )
    table = Table("", *columns)
    if bare:
        table.add_row(BARE, *_spread(bare), "1.00", *[""] * 6)
    first = 0.0
    for name, runs in measured.items():
        seconds = [value for run in runs for value in run.rounds]
        median = statistics.median(seconds)
        first = first or median
        table.add_row(
            name,
            *_spread(seconds),
            f"{median / statistics.median(bare):.2f}" if bare else "",
            f"{median / first:.2f}",
            f"{statistics.median(run.start_up for run in runs):.1f}",
            *_memory(runs),
            f"{runs[0].bytes_per_round / 1e6:.2f}",
        )
    return table


def _memory(runs: list[Measured]) -> tuple[str, str, str]:
    if not runs[0].memory:
        return "", "", ""
    return (
        f"{statistics.median(run.memory[0] for run in runs):.0f}",
        f"{max(max(run.memory) for run in runs):.0f}",
        f"{max(max(run.with_files) for run in runs):.0f}",
    )


def _profile(measured: dict[str, list[Measured]]) -> Table:
    """Say which share of a round's wall clock each column accounts for."""
    table = Table(
        "share of a round, %", *[name.removeprefix("seconds_") for name in SECONDS], "sum"
    )
    for name, runs in measured.items():
        wall = sum(value for run in runs for value in run.rounds)
        shares = [100 * sum(sum(run.parts[part][1:]) for run in runs) / wall for part in SECONDS]
        table.add_row(name, *[f"{share:.1f}" for share in [*shares, sum(shares)]])
    return table


def _spread(values: list[float]) -> tuple[str, str, str]:
    return f"{min(values):.2f}", f"{statistics.median(values):.2f}", f"{max(values):.2f}"


if __name__ == "__main__":
    typer.run(main)
