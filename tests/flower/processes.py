"""Processes of ours: started with folders of their own, ended by their id."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

BIN = Path(sys.executable).parent
PATIENCE = 1200
"""Seconds until a run counts as hanging; on two free cores one takes 10 to 60."""


@dataclass(kw_only=True)
class Processes:
    """Long-lived processes that share a home folder and nothing with anybody else."""

    home: Path
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _number: Iterator[int] = field(default_factory=lambda: count(1))
    # Ray's sockets lie here, whose paths must stay below 108 characters.
    _ray: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="fa-", dir="/tmp")))

    def spawn(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a long-lived process in a session of its own; its output goes to `name`-n.log."""
        with (self.home / f"{name}-{next(self._number)}.log").open("wb") as log:
            process = subprocess.Popen(
                [BIN / command[0], *command[1:]],
                env=self.environment(),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def said(self, name: str = "*") -> str:
        """Return what the processes of that name have logged."""
        return "".join(log.read_text() for log in sorted(self.home.glob(f"{name}-*.log")))

    def stop(self) -> None:
        for process in reversed(self._processes):
            end(process)
        shutil.rmtree(self._ray, ignore_errors=True)

    @staticmethod
    def kill(process: subprocess.Popen[bytes]) -> None:
        """End a process of ours and all it started, at once and without a word."""
        for pid in [process.pid, *descendants(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    @property
    def foreign_cluster(self) -> Path:
        """The file in which `ray start` leaves the address of a cluster, which Ray would join."""
        return self._ray / "ray" / "ray_current_cluster"

    def environment(self) -> dict[str, str]:
        home = str(self.home)
        return {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "HOME": home,
            "FLWR_HOME": home,
            "XDG_CACHE_HOME": f"{home}/cache",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "UV_OFFLINE": "1",  # `uv sync` before each run must find nothing to download
            "UV_CACHE_DIR": f"{home}/uv",
            "RAY_TMPDIR": str(self._ray),
            "OMP_NUM_THREADS": "1",  # in Ray's workers and SuperNodes alike: the same sums
        }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], failure: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, failure
        time.sleep(0.3)


def end(process: subprocess.Popen[bytes], patience: float = 15) -> None:
    """End a process and what it started: ask, wait, then kill what is left, by its id.

    Flower detaches its SuperExec into another session, which leaves by itself when its parent has
    gone; so does everything below it. What does not is killed.
    """
    family = {pid: born for pid in descendants(process.pid) if (born := birth(pid))}
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        process.poll()  # reaps it, or it would stay as a zombie
        family = {pid: born for pid, born in family.items() if birth(pid) == born}
        if process.returncode is not None and not family:
            return
        time.sleep(0.1)
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def descendants(pid: int) -> list[int]:
    found, parents = [], [pid]
    while parents:
        parent = parents.pop()
        try:
            tasks = list(Path(f"/proc/{parent}/task").iterdir())
            children = [int(c) for t in tasks for c in (t / "children").read_text().split()]
        except OSError:  # it has ended meanwhile
            continue
        found += children
        parents += children
    return found


def birth(pid: int) -> str:
    """Return when a process began, in ticks; empty if it is no more (or only a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def superexec_of(process: subprocess.Popen[bytes]) -> int:
    """Return the process id of the SuperExec that a SuperLink or SuperNode has started."""
    found: list[int] = []

    def is_there() -> bool:
        found[:] = [pid for pid in descendants(process.pid) if b"--parent-pid" in command_line(pid)]
        return bool(found)

    wait_until(is_there, "there is no SuperExec")
    return found[0]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended meanwhile
        return b""
