"""The app's rounds, measured from outside, on a SuperLink of its own."""

import csv
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from fedadb_app.config import Scalar
from fedadb_app.flower_run import FlowerRun, Simulation
from fedadb_app.runs.record import RoundRecord

CHECKOUT = Path(__file__).resolve().parents[1]
SECONDS = [name for name in RoundRecord.header() if name.startswith("seconds_")]


@dataclass
class Measured:
    """What one run of the app took.

    Attributes
    ----------
    start_up : float
        Seconds from `flwr run` to the begin of round 1.
    rounds : list[float]
        Seconds between the ends of two rounds, by the clock outside; one less than rounds.
    parts : dict[str, list[float]]
        The ``seconds_*`` columns, one value a round.
    memory : list[float]
        Memory of the whole process tree after every tenth round, MiB; pages that processes
        share count once. Mapped files (the data set, libraries) are left out: the system can drop
        them.
    with_files : list[float]
        The same with mapped files.
    bytes_per_round : float
        Sent and received, mean.
    """

    start_up: float = 0.0
    rounds: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=dict)
    memory: list[float] = field(default_factory=list)
    with_files: list[float] = field(default_factory=list)
    bytes_per_round: float = 0.0


@contextmanager
def own_superlink(
    command: Sequence[str] = ("flower-superlink", "--simulation"),
) -> Iterator[psutil.Process]:
    """Start a SuperLink in a folder of its own, and make it the default connection, ``bench``."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the SuperLink would stay behind
    home = Path(tempfile.mkdtemp(prefix="fb-", dir="/tmp"))  # Ray's socket paths must be short
    port = free_port()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "bench"\n[superlink.bench]\n'
        f'address = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    os.environ |= {"FLWR_HOME": str(home), "RAY_TMPDIR": str(home), "FLWR_TELEMETRY_ENABLED": "0"}
    address = ["--host", "127.0.0.1", "--port", str(port)]
    with (home / "superlink.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--insecure", "--isolation", "subprocess", *address],
            cwd=home,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while True:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).is_success:
                    break
            except httpx.HTTPError:
                time.sleep(0.2)
            if process.poll() is not None:
                raise RuntimeError(f"no SuperLink: {(home / 'superlink.log').read_text()[-2000:]}")
        yield psutil.Process(process.pid)
    finally:
        tree = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
        for part in tree:
            part.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(tree, timeout=20)
        for part in alive:
            part.kill()
        shutil.rmtree(home, ignore_errors=True)


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def measure(
    superlink: psutil.Process, values: dict[str, Scalar], simulation: Simulation
) -> Measured:
    """Run the app once and watch it.

    Raises
    ------
    RuntimeError
        If the run did not complete: a failed run is no measurement.
    """
    found = Measured()
    with tempfile.TemporaryDirectory() as output:
        folder = Path(output) / "run"
        values = {**values, "output-dir": output, "run-name": "run"}
        begin = time.time()
        run = FlowerRun(CHECKOUT, values, simulation)
        ends: list[float] = []
        over = threading.Event()

        def watch() -> None:
            size = 0
            while not over.wait(0.01):
                if (now := _size(folder / "rounds.csv")) == size:
                    continue
                size, new = now, len(rounds_of(folder)) - len(ends)
                ends.extend([time.time()] * new)
                if new and len(ends) % 10 == 0:  # reading it stops each process a moment
                    own, files = _tree_mebibytes(superlink)
                    found.memory.append(own)
                    found.with_files.append(own + files)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            status, details = run.wait(folder, lambda: None)
        finally:
            over.set()
            watcher.join()
        if status != "finished:completed":
            raise RuntimeError(f"{status}: {details}")
        rows = rounds_of(folder)
    found.parts = {name: [float(row[name]) for row in rows] for name in SECONDS}
    found.start_up = ends[0] - begin - sum(column[0] for column in found.parts.values())
    found.rounds = [after - before for before, after in itertools.pairwise(ends)]
    sent = [float(row["bytes_down"]) + float(row["bytes_up"]) for row in rows]
    found.bytes_per_round = sum(sent) / len(sent)
    return found


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def rounds_of(folder: Path) -> list[dict[str, str]]:
    """Return the rows of a run's ``rounds.csv``, none if there is none yet."""
    try:
        with (folder / "rounds.csv").open(newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        return []


def _tree_mebibytes(top: psutil.Process) -> tuple[float, float]:
    """Return the proportional set size of a process tree: own and shared memory, mapped files."""
    own = files = 0
    for process in [top, *top.children(recursive=True)]:
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        kibibytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        own += kibibytes.get("Pss_Anon", 0) + kibibytes.get("Pss_Shmem", 0)
        files += kibibytes.get("Pss_File", 0)
    return own / 1024, files / 1024
