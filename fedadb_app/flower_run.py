"""Starting, watching and stopping a Flower run from outside, through the `flwr` command.

`flwr run` exits with 0 even if the run fails later, so what counts here is the status that the
SuperLink reports.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from fedadb_app.assignments import app_defaults, as_assignments
from fedadb_app.config import Scalar
from fedadb_app.errors import ConfigError, FedADBError
from fedadb_app.runs.origin import note_commit
from fedadb_app.runs.summary import read_summary
from strategies.fit import refuse_misfit
from strategies.registry import read_run_config

_LOOK_EVERY = 0.5  # seconds between two looks at the run's folder
_ASK_EVERY = 60.0  # seconds between two calls of `flwr list`, each of which costs a second
_GRACE = 30.0  # seconds in which Flower's process has to end after the run itself has


class FlowerError(FedADBError):
    """Flower refused a command."""


class Stopped(BaseException):
    """A run is to be stopped, since the command has been interrupted."""


@dataclass(frozen=True)
class Simulation:
    """How the simulated federation is set up; see `flwr run --federation-config`.

    Attributes
    ----------
    num_supernodes : int
        K, the number of clients.
    client_cpus : int
        CPUs, and so torch threads, of one client; a worker runs for every so many CPUs.
    client_gpus : float
        Share of a GPU of one client.
    workers : int
        Clients that train side by side, which changes no result; 0 for as many as the CPUs allow.
    """

    num_supernodes: int = 2
    client_cpus: int = 1
    client_gpus: float = 0.0
    workers: int = 0

    def __post_init__(self) -> None:
        """Refuse clients that no worker on this machine could ever take.

        Raises
        ------
        ConfigError
            If clients ask for more CPUs than there are, unless ``RAY_ADDRESS`` names a cluster,
            whose workers are as many as fit on its machines.
        """
        cpus = os.cpu_count() or 1
        if _on_a_cluster():
            if self.workers:
                raise ConfigError(
                    f"--workers {self.workers}: a run on the Ray cluster that RAY_ADDRESS names "
                    f"has as many workers as fit on its machines; leave --workers out"
                )
            return
        if self.client_cpus > cpus:
            raise ConfigError(
                f"--client-cpus {self.client_cpus}: this machine has {cpus} CPUs, so no client "
                f"could ever start; use at most {cpus}"
            )
        if self.workers * self.client_cpus > cpus:
            raise ConfigError(
                f"--workers {self.workers}: with {self.client_cpus} CPUs for each client they need "
                f"{self.workers * self.client_cpus}, and this machine has {cpus}"
            )

    def shared_by(self, jobs: int) -> "Simulation":
        """Return the same federation for one of several runs side by side, on its share of CPUs.

        Raises
        ------
        ConfigError
            If a client does not fit into this share.
        """
        if jobs == 1 or self.workers:
            return self
        if _on_a_cluster():
            raise ConfigError(
                f"--jobs {jobs}: a run takes all workers of the Ray cluster that RAY_ADDRESS "
                f"names, so others would wait for it; use --jobs 1"
            )
        share = (os.cpu_count() or 1) // jobs
        if share < self.client_cpus:
            raise ConfigError(
                f"--jobs {jobs}: each run would have {share} of this machine's "
                f"{os.cpu_count() or 1} CPUs, but a client has {self.client_cpus}; "
                f"use fewer jobs, or say how many --workers each has"
            )
        return replace(self, workers=share // self.client_cpus)

    def arguments(self) -> str:
        """Return the text for ``--federation-config``."""
        workers = f" init-args-num-cpus={self.workers * self.client_cpus}" if self.workers else ""
        return (
            f"num-supernodes={self.num_supernodes} client-resources-num-cpus={self.client_cpus} "
            f"client-resources-num-gpus={self.client_gpus}{workers}"
        )


def _on_a_cluster() -> bool:
    return os.environ.get("RAY_ADDRESS", "local") != "local"


def checked_values(app: Path, overrides: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Check the overrides of one run, and fill in where its results go, so that they can be seen.

    Raises
    ------
    ConfigError
        As `read_run_config` and `refuse_misfit`; also if the run's folder exists already.
    """
    if (folder := str(app.resolve())) not in sys.path:
        sys.path.append(folder)  # a net of a user's own may lie in the app that is submitted
    config, method, _ = read_run_config({**app_defaults(app), **overrides})
    refuse_misfit(config, method)
    output = Path(config.output_dir or "~/fedadb-runs").expanduser()
    if config.run_name and (output / config.run_name).exists():
        raise ConfigError(f'run-name="{config.run_name}" already exists in output-dir')
    name = config.run_name or (f"{config.short_name}-{time.strftime('%Y%m%d-%H%M%S')}")
    return {**overrides, "output-dir": str(output), "run-name": name}


class FlowerRun:
    """One submitted run.

    Parameters
    ----------
    app : Path
        The checkout.
    values : Mapping[str, Scalar]
        Overrides of the run configuration.
    simulation : Simulation or None
        How to simulate; None for a SuperLink with real SuperNodes.
    superlink : str
        A connection of ``$FLWR_HOME/config.toml``; empty for its default.
    home : Path or None
        ``FLWR_HOME`` for this run; None for the user's.

    Raises
    ------
    FlowerError
        If Flower refuses the run.
    """

    def __init__(
        self,
        app: Path,
        values: Mapping[str, Scalar],
        simulation: Simulation | None,
        superlink: str = "",
        home: Path | None = None,
    ) -> None:
        self._home = home
        self._superlink = [superlink] if superlink else []
        arguments = ["run", str(app), *self._superlink, "--run-config", as_assignments(values)]
        if simulation is not None:
            arguments += ["--federation-config", simulation.arguments()]
        note_commit(app)
        self.run_id = str(_flwr(home, *arguments)["run-id"])

    def status(self) -> tuple[str, str]:
        """Return what the SuperLink says: e.g. ``running`` or ``finished:completed``.

        The second text says why a run failed.
        """
        (run,) = _flwr(self._home, "list", "--run-id", self.run_id, *self._superlink)["runs"]
        return run["status"], run.get("status-details") or ""

    def stop(self) -> None:
        """Ask Flower to stop the run; a second Ctrl-C does not keep the request from arriving."""
        with uninterrupted():
            _flwr(self._home, "stop", self.run_id, *self._superlink)

    def wait(self, folder: Path, on_look: Callable[[], None]) -> tuple[str, str]:
        """Wait for the end of the run; call `on_look` twice a second.

        A process of Flower's that goes on although the run's summary has ended it (a simulation
        that waits for CPUs, say) is stopped.

        Parameters
        ----------
        folder : Path
            The run's results folder: its summary tells when to ask the SuperLink.
        on_look : Callable
            Shows progress.

        Returns
        -------
        tuple[str, str]
            As `status`, finished.
        """
        next_question = time.monotonic() + _ASK_EVERY
        last_chance = math.inf
        while True:
            on_look()
            summary = read_summary(folder)
            ended = summary.get("status") not in (None, "running")
            if ended:
                last_chance = min(last_chance, time.monotonic() + _GRACE)
            if ended or time.monotonic() >= next_question:
                status, details = self.status()
                if status.startswith("finished"):
                    return status, details
                if time.monotonic() >= last_chance:
                    self.stop()
                    return f"finished:{summary['status']}", str(summary.get("reason", ""))
                next_question = time.monotonic() + _ASK_EVERY
                time.sleep(_LOOK_EVERY)
            time.sleep(_LOOK_EVERY)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C, in this process and in the commands that it starts meanwhile.

    Only the main thread can; others rely on its doing so while it waits for them.
    """
    if current_thread() is not main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _flwr(home: Path | None, *arguments: str) -> dict[str, Any]:
    program = shutil.which("flwr")
    if program is None:
        raise FlowerError("the command `flwr` is not on PATH; activate the app's environment")
    environment = {**os.environ, **({"FLWR_HOME": str(home)} if home else {})}
    done = subprocess.run(
        [program, *arguments, "--format", "json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        answer = {"success": False, "error-message": (done.stderr or done.stdout).strip()}
    if not answer.get("success"):
        raise FlowerError(f"flwr {arguments[0]}: {answer.get('error-message', 'no answer')}")
    return answer
