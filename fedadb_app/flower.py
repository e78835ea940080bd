"""Starting, watching and stopping a Flower run from outside, through the `flwr` command.

`flwr run` exits with 0 even if the run fails later, so what counts here is the status that the
SuperLink reports.
"""

import json
import re
import shutil
import signal
import subprocess
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedadb_app.config import Scalar
from fedadb_app.errors import ConfigError, FedADBError

_ASSIGNMENT = re.compile(r"""([^\s=]+)\s*=\s*("(?:[^"\\]|\\.)*"|'[^']*'|[^\s"']+)""")
_LOOK_EVERY = 0.5  # seconds between two looks at the run's folder
_ASK_EVERY = 60.0  # seconds between two calls of `flwr list`, each of which costs a second


class FlowerError(FedADBError):
    """Flower refused a command."""


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
    """

    num_supernodes: int = 2
    client_cpus: int = 1
    client_gpus: float = 0.0

    def arguments(self) -> str:
        """Return the text for ``--federation-config``."""
        return (
            f"num-supernodes={self.num_supernodes} client-resources-num-cpus={self.client_cpus} "
            f"client-resources-num-gpus={self.client_gpus}"
        )


def parse_assignments(text: str) -> dict[str, Scalar]:
    """Parse ``key=value key="text"``, as `flwr run --run-config` takes it, or a TOML file's path.

    `flwr` drops what it does not understand without a word; here it is an error.

    Raises
    ------
    ConfigError
        If any part of the text is no assignment of a TOML value.
    """
    if text.endswith(".toml"):
        try:
            return flatten(tomllib.loads(Path(text).expanduser().read_text()))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"run configuration file {text} cannot be read: {error}") from error
    rest = _ASSIGNMENT.sub("", text).strip()
    if rest:
        raise ConfigError(
            f'"{rest}" in the run configuration is no key=value pair; write texts in double '
            f"quotes, as in 'strategy=\"fedavg\" alpha=0.1'"
        )
    values: dict[str, Scalar] = {}
    for key, value in _ASSIGNMENT.findall(text):
        try:
            values[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(
                f'{key}={value} is no TOML value; write texts in double quotes: {key}="{value}"'
            ) from error
    return values


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Turn nested tables into dotted keys, as Flower does."""
    flat: dict[str, Scalar] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def as_assignments(values: Mapping[str, Scalar]) -> str:
    """Write values as `flwr run --run-config` reads them (it knows no escapes inside a text)."""
    words = []
    for key, value in values.items():
        if isinstance(value, str):
            quote = '"' if '"' not in value and "\\" not in value else "'"
            words.append(f"{key}={quote}{value}{quote}")
        else:
            words.append(f"{key}={str(value).lower()}")
    return " ".join(words)


def app_defaults(app: Path) -> dict[str, Scalar]:
    """Read an app's default run configuration.

    Raises
    ------
    ConfigError
        If the folder holds no Flower app.
    """
    try:
        project = tomllib.loads((app / "pyproject.toml").read_text())
        return flatten(project["tool"]["flwr"]["app"]["config"])
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"{app} is not a checkout of this app (no [tool.flwr.app.config] in a pyproject.toml); "
            f"name it with --app"
        ) from error


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
    ) -> None:
        self._superlink = [superlink] if superlink else []
        arguments = ["run", str(app), *self._superlink, "--run-config", as_assignments(values)]
        if simulation is not None:
            arguments += ["--federation-config", simulation.arguments()]
        self.run_id = str(_flwr(*arguments)["run-id"])

    def status(self) -> tuple[str, str]:
        """Return what the SuperLink says: e.g. ``running`` or ``finished:completed``.

        The second text says why a run failed.
        """
        (run,) = _flwr("list", "--run-id", self.run_id, *self._superlink)["runs"]
        return run["status"], run.get("status-details") or ""

    def stop(self) -> None:
        """Ask Flower to stop the run; a second Ctrl-C does not keep the request from arriving."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            _flwr("stop", self.run_id, *self._superlink)
        finally:
            signal.signal(signal.SIGINT, before)

    def wait(self, folder: Path, on_look: Callable[[], None]) -> tuple[str, str]:
        """Wait for the end of the run; call `on_look` twice a second.

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
        while True:
            on_look()
            ended = read_summary(folder).get("status") not in (None, "running")
            if ended or time.monotonic() >= next_question:
                status, details = self.status()
                if status.startswith("finished"):
                    return status, details
                next_question = time.monotonic() + _ASK_EVERY
                time.sleep(_LOOK_EVERY)
            time.sleep(_LOOK_EVERY)


def read_summary(folder: Path) -> dict[str, Any]:
    """Return a run's ``summary.json``, or nothing while it has none."""
    try:
        content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    except (OSError, json.JSONDecodeError):
        return {}
    return content


def _flwr(*arguments: str) -> dict[str, Any]:
    program = shutil.which("flwr")
    if program is None:
        raise FlowerError("the command `flwr` is not on PATH; activate the app's environment")
    done = subprocess.run(
        [program, *arguments, "--format", "json"], capture_output=True, text=True, check=False
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        answer = {"success": False, "error-message": (done.stderr or done.stdout).strip()}
    if not answer.get("success"):
        raise FlowerError(f"flwr {arguments[0]}: {answer.get('error-message', 'no answer')}")
    return answer
