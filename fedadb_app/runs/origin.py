"""Where a run's numbers come from: its values, the code (hash, Git commit), packages, machine."""

import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import tomli_w
import torch

from fedadb_app.app_hash import app_hash, running_app_hash
from fedadb_app.config import RunConfig
from fedadb_app.data.prepared import cache_folder
from fedadb_app.errors import StorageError
from fedadb_app.runs.atomic import replace
from fedadb_app.settings import Scalar

_PACKAGES = ("fedadb-app", "flwr", "ray", "torch", "torchvision", "medmnist", "numpy")
_NO_CHECKOUT = "unknown: the app's folder is no checkout, only app-hash says which code it is"
_APP = Path(__file__).resolve().parents[2]

_COMMITS = "commits"
"""In the user's cache: per hash of an app's code, as which commit it was last submitted."""


def effective_values(
    config: RunConfig, own: Mapping[str, Scalar], origin: Mapping[str, str] | None = None
) -> str:
    """Return ``config.toml``: every value, the versions here and, where given, `origin`."""
    tables = config.model_dump(by_alias=True) | {config.strategy: dict(own)}
    tables["packages"] = versions()
    return tomli_w.dumps(tables if origin is None else {**tables, "origin": dict(origin)})


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that numbers may depend on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # an app that runs from its FAB need not be installed
            continue
    return found


def origin(device: str) -> dict[str, str]:
    """Return what code runs here, and on which machine.

    Parameters
    ----------
    device : str
        The run's: with ``cpu`` no GPU is looked for.
    """
    return {"app-hash": running_app_hash(), "git": commit_of(_APP), **_machine(device)}


def note_commit(checkout: Path) -> None:
    """Note which commit a checkout's code is, before Flower packs it.

    The bundle has no Git, but the same code, and so the same hash: a run of it on this machine, by
    this user, finds the note (`commit_of`).
    """
    state = git_state(checkout)
    if not state.startswith("unknown"):
        with suppress(StorageError):  # then the run says that its commit is unknown
            replace(cache_folder() / _COMMITS / app_hash(checkout), state.encode())


def commit_of(app: Path) -> str:
    """Return `git_state`; of a bundle, what was noted of a checkout with the same code."""
    state = git_state(app)
    if state == _NO_CHECKOUT:
        with suppress(OSError):  # nobody has noted anything
            state = (cache_folder() / _COMMITS / app_hash(app)).read_text()
    return state


def git_state(app: Path) -> str:
    """Return the commit of an app's folder and what differs from it, or why that is unknown.

    A bundle that Flower has unpacked below somebody's checkout is no part of that.
    """
    try:
        if _git(app, "ls-files", "client_app.py").strip() != "client_app.py":
            return _NO_CHECKOUT
        commit = _git(app, "rev-parse", "HEAD").strip()
        changed = len(_git(app, "status", "--porcelain").splitlines())
    except FileNotFoundError:
        return "unknown: Git is not installed"
    except (OSError, subprocess.SubprocessError):
        return _NO_CHECKOUT
    return f"{commit}, {changed} changed files" if changed else f"{commit}, no changed files"


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    )
    return done.stdout


def _machine(device: str) -> dict[str, str]:
    import psutil  # here: the nodes' processes need none of it

    names = []
    if device != "cpu" and torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    memory = psutil.virtual_memory().total / 2**30
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": str(psutil.cpu_count()),
        "memory": f"{memory:.1f} GiB",
        "gpu": ", ".join(names) or "none used",
    }


def _processor() -> str:
    try:  # what platform.processor() leaves empty on Linux
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
