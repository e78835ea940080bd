"""A SuperLink for simulations that nobody else uses: its own port, Flower home, log and Ray."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil

from fedadb_app.errors import FedADBError

_MARK = "FEDADB_SUPERLINK_OF"  # in the environment of all that such a SuperLink has started
_PREFIX = "fedadb-superlink-"
_START_SECONDS = 120.0
_END_SECONDS = 20.0


class SuperLinkError(FedADBError):
    """A SuperLink did not start."""


@contextlib.contextmanager
def own_superlink(owner: Path, log: Path) -> Iterator[Path]:
    """Start a SuperLink for simulations, and end it with all that it started.

    The one that ``flwr run`` starts is shared by all that a user does; side by side, each run has
    one of its own, so that none waits for another's and a crash ends one run only.

    Parameters
    ----------
    owner : Path
        The folder that it works for; `end_forsaken` finds it by this.
    log : Path
        Where it writes what it says.

    Yields
    ------
    Path
        What ``FLWR_HOME`` must be for a ``flwr`` command that is meant for it.

    Raises
    ------
    SuperLinkError
        If it ends at once, or does not answer in time.
    """
    program = shutil.which("flower-superlink")
    if program is None:
        raise SuperLinkError(
            "the command `flower-superlink` is not on PATH; activate the app's environment"
        )
    port = _free_port()
    home = Path(tempfile.mkdtemp(prefix=_PREFIX))
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "own"\n\n[superlink.own]\naddress = "127.0.0.1:{port}"\n'
        f"insecure = true\n"
    )
    mode = ["--insecure", "--simulation", "--isolation", "subprocess"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, *mode, "--host", "127.0.0.1", "--port", str(port)],
            env={**os.environ, "FLWR_HOME": str(home), _MARK: str(owner)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the command, which ends this one
        )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SuperLinkError(f"a SuperLink of its own did not start; see {log}")
            time.sleep(0.2)
        yield home
    finally:
        _end(_marked(owner, home))
        process.wait()
        shutil.rmtree(home, ignore_errors=True)


def end_forsaken(owner: Path) -> int:
    """End what the SuperLinks of a folder left running when their command was killed.

    Otherwise a run that nobody waits for would go on writing where its successor begins.

    Returns
    -------
    int
        Number of processes ended.
    """
    left = _marked(owner)
    homes = {Path(_environment(process)["FLWR_HOME"]) for process in left}
    _end(left)
    for home in homes:
        shutil.rmtree(home, ignore_errors=True)
    return len(left)


def _marked(owner: Path, home: Path | None = None) -> list[psutil.Process]:
    """Return the processes that work for a folder, of one Flower home or of all."""
    found = []
    for process in psutil.process_iter():
        environment = _environment(process)
        of_home = home is None or environment.get("FLWR_HOME") == str(home)
        if environment.get(_MARK) == str(owner) and of_home:
            found.append(process)
    return found


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):  # it has ended, or is another user's
        return {}


def _end(processes: list[psutil.Process]) -> None:
    """Ask processes to end, then end them."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(processes, timeout=_END_SECONDS)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=_END_SECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False
