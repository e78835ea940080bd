"""A SuperLink and SuperNodes as docs/deploy.md starts them, through the `fedadb` command."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flower.processes import descendants, wait_until
from flower.superlink import SuperLink


@dataclass
class LaunchedSuperLink(SuperLink):
    """With a database, and with SuperNodes that fork their ClientApps."""

    def spawn(self, command: str, *arguments: str) -> subprocess.Popen[bytes]:
        name = command.removeprefix("flower-")
        if name == "superlink":
            arguments = (*arguments, "--database", str(self.home / "state.db"))
        return super().spawn("fedadb", name, *arguments)

    def said(self) -> str:
        """Return what all processes have logged."""
        return "".join(log.read_text() for log in sorted(self.home.glob("fedadb-*.log")))


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


@contextmanager
def launched(home: Path, app: Path) -> Iterator[LaunchedSuperLink]:
    home.mkdir()
    for name in ("client_app", "server_app", "strategies", "fedadb_app"):
        (home / f"{name}.py").write_text("raise RuntimeError('not the module of the run')\n")
    link = LaunchedSuperLink(app, simulation=False, home=home)
    try:
        link.start()
        yield link
    finally:
        link.stop()


def end_superexec(process: subprocess.Popen[bytes]) -> None:
    os.kill(superexec_of(process), signal.SIGKILL)
