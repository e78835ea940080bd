"""A SuperLink and SuperNodes as docs/deploy.md starts them: `fedadb superlink`, `fedadb supernode`.

What these commands become is started at once: the `fedadb` command itself imports for seconds.
"""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from flower.processes import descendants, wait_until
from flower.superlink import SuperLink

from fedadb_app import flower_processes


@dataclass
class LaunchedSuperLink(SuperLink):
    """With a database, and with SuperNodes that fork their ClientApps."""

    def spawn(self, command: str, *arguments: str) -> subprocess.Popen[bytes]:
        name = command.removeprefix("flower-")
        if name == "superlink":
            arguments = (*arguments, "--database", str(self.home / "state.db"))
        _, *words = flower_processes.command(getattr(flower_processes, name))
        return super().spawn("python", *words, *arguments)

    @contextmanager
    def supernodes(self, number: int) -> Iterator[None]:
        """Keep so many SuperNodes running."""
        with ExitStack() as running:
            for k in range(number):
                running.enter_context(self.supernode(k, number))
            yield

    def said(self) -> str:
        """Return what all processes have logged."""
        return "".join(log.read_text() for log in sorted(self.home.glob("python-*.log")))


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
