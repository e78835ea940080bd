"""Seconds that real SuperNodes wait in a round, beyond their own training.

``python -m benchmarks.nodes`` runs FedAvg with LeNet on the embedded digits, twice: with Flower's
own SuperLink and SuperNodes, and with `fedadb superlink` and `fedadb supernode`. A round's waiting
is its time from the first message sent to the last reply read, less the training of the client
that trained longest. What torch imports for the first optimizer counts as training where it is not
imported before: with Flower's own SuperNodes. Everything lies in temporary folders.
"""

import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console

from benchmarks.app import CHECKOUT, free_port, own_superlink, rounds_of
from fedadb_app import flower_processes
from fedadb_app.flower_run import FlowerRun

LAUNCHERS = {
    "flower": (["flower-superlink"], ["flower-supernode"]),
    "fedadb": tuple(
        flower_processes.command(p)
        for p in (flower_processes.superlink, flower_processes.supernode)
    ),
}
"""How SuperLink and SuperNodes are started, by name."""

TRAINED = "trained.csv"
TIMER = f'''

import os
import time

from fedadb_app.local_training import Trainer


def timed(self, train=Trainer.train):
    begun = time.monotonic()
    metrics = train(self)
    with open(os.path.join(os.environ["FLWR_HOME"], "{TRAINED}"), "a") as file:
        file.write(f"{{self.task.server_round}},{{time.monotonic() - begun:.3f}}\\n")
    return metrics


Trainer.train = timed
'''
"""What is added to the app's clients: each notes its round and the seconds that it trained."""

console = Console(highlight=False)


def main(
    nodes: Annotated[int, typer.Option(min=1)] = 3,
    rounds: Annotated[int, typer.Option(min=2)] = 10,
    local_epochs: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Print each launcher's waiting per round: the median, the least and the most."""
    config = f"{nodes} nodes, {local_epochs} local epochs, {rounds} rounds, {os.cpu_count()} CPUs"
    for launcher, (superlink, supernode) in LAUNCHERS.items():
        load = os.getloadavg()[0]
        waits, trained = measure(superlink, supernode, nodes, rounds, local_epochs)
        console.print(
            f"{launcher}: waiting {statistics.median(waits):.1f} s a round "
            f"({min(waits):.1f} to {max(waits):.1f}), training {statistics.median(trained):.1f} s; "
            f"{config}, load before it {load:.1f}",
            soft_wrap=True,  # a line each, however narrow the terminal
        )


def measure(
    superlink: Sequence[str], supernode: Sequence[str], nodes: int, rounds: int, local_epochs: int
) -> tuple[list[float], list[float]]:
    """Return each round's seconds of waiting and of training, without the first round's.

    Raises
    ------
    RuntimeError
        If the run did not complete.
    """
    with own_superlink(superlink), tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        for k in range(nodes):
            running.enter_context(started(supernode, k, nodes))
        values = {
            **{"strategy": "fedavg", "model": "lenet", "dataset": "digits", "min-nodes": nodes},
            **{"num-server-rounds": rounds, "local-epochs": local_epochs},
            **{"output-dir": folder, "run-name": "run"},
        }
        run = FlowerRun(timed_app(Path(folder) / "app"), values, None, "bench")
        status, details = run.wait(Path(folder) / "run", lambda: None)
        if status != "finished:completed":
            raise RuntimeError(f"{status}: {details}")
        wall = [float(row["seconds_train"]) for row in rounds_of(Path(folder) / "run")]
        longest = [0.0] * rounds
        for line in (Path(os.environ["FLWR_HOME"]) / TRAINED).read_text().split():
            number, seconds = line.split(",")
            longest[int(number) - 1] = max(longest[int(number) - 1], float(seconds))
    return [w - t for w, t in zip(wall, longest, strict=True)][1:], longest[1:]


@contextmanager
def started(supernode: Sequence[str], number: int, nodes: int) -> Iterator[None]:
    """Keep a SuperNode running at the SuperLink of ``FLWR_HOME``."""
    home = Path(os.environ["FLWR_HOME"])
    address = (home / "config.toml").read_text().split('address = "')[1].split('"')[0]
    config = f"partition-id={number} num-partitions={nodes}"
    options = ["--superlink", address, "--port", str(free_port()), "--node-config", config]
    with (home / f"supernode-{number}.log").open("wb") as log:
        process = psutil.Popen(
            [*supernode, "--insecure", *options], cwd=home, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield
    finally:
        tree = [*process.children(recursive=True), process]
        process.terminate()
        for part in psutil.wait_procs(tree, timeout=20)[1]:
            part.kill()


def timed_app(target: Path) -> Path:
    """Copy the app, with clients that note how long they train."""
    target.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "client_app.py", "server_app.py"):
        shutil.copy(CHECKOUT / name, target)
    for name in ("fedadb_app", "strategies"):
        shutil.copytree(CHECKOUT / name, target / name)
    with (target / "client_app.py").open("a") as code:
        code.write(TIMER)
    return target


if __name__ == "__main__":
    typer.run(main)
