"""The node's own machine: each check returns what it found, or raises what to do."""

import os
import platform
import shutil
from importlib import metadata
from pathlib import Path

import psutil
import torch
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, RecordDict
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from fedadb_app.certificates import open_to_others
from fedadb_app.client_context import at_this_node, configured_data
from fedadb_app.data.clients import PartitionClaim, client_data, image_schema
from fedadb_app.data.prepared import cache_folder
from fedadb_app.errors import CredentialError, DataError, NodeError
from fedadb_app.local_training import choose_device
from fedadb_app.node_check.settings import NodeSettings

GIB = 2**30
NEEDED_MEMORY, NEEDED_DISK = 2 * GIB, 1 * GIB
"""Bytes: for a SuperNode and one ClientApp with a small model; for the app, its runs and caches."""


def check_versions(_: NodeSettings) -> str:
    """Compare what is installed with what the app asks for."""
    try:
        app = metadata.distribution("fedadb-app")
    except metadata.PackageNotFoundError as error:
        raise NodeError(
            "the app is not installed here: run pip install . in its checkout"
        ) from error
    needed = {"Python": SpecifierSet(app.metadata["Requires-Python"])}
    for requirement in map(Requirement, app.requires or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            needed[requirement.name] = requirement.specifier
    found = {name: _version(name) for name in needed}
    wrong = [
        f"{name} {found[name] or 'is missing'} ({allowed} is needed)"
        for name, allowed in needed.items()
        if not found[name] or not allowed.contains(found[name], prereleases=True)
    ]
    if wrong:
        raise NodeError(f"{', '.join(wrong)}: run pip install . in the app's checkout")
    return f"Python {found['Python']}, flwr {_version('flwr')}, torch {_version('torch')}"


def _version(name: str) -> str:
    """Return an installed version, or nothing."""
    try:
        return platform.python_version() if name == "Python" else metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def check_memory(_: NodeSettings) -> str:
    """Read how much memory new processes can have."""
    return _enough("free", psutil.virtual_memory().available, NEEDED_MEMORY, "end other programs")


def check_disk(_: NodeSettings) -> str:
    """Look where Flower keeps apps and where this app keeps prepared data."""
    flower = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    found = []
    for folder, variable in ((flower, "FLWR_HOME"), (cache_folder(), "XDG_CACHE_HOME")):
        there = next(path for path in (folder, *folder.parents) if os.path.exists(path))
        todo = f"set {variable} to a folder elsewhere"
        if not os.access(there, os.W_OK):
            raise NodeError(f"{folder} is needed, but this user may not write to {there}: {todo}")
        free = shutil.disk_usage(there).free
        found.append(_enough(f"free for {folder}", free, NEEDED_DISK, todo))
    return "; ".join(found)


def _enough(what: str, free: int, needed: int, todo: str) -> str:
    if free < needed:
        raise NodeError(
            f"{free / GIB:.1f} GiB {what}, but {needed / GIB:.0f} GiB are needed: {todo}"
        )
    return f"{free / GIB:.1f} GiB {what}"


def check_device(settings: NodeSettings) -> str:
    """Find the device that the federation's configuration leads to here."""
    device = choose_device(settings.config.device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return f"{torch.cuda.get_device_name(device)}, {free / GIB:.1f} GiB free"
    return f"{device.type}, {torch.get_num_threads()} threads"


def check_data(settings: NodeSettings) -> str:
    """Open the node's samples as its ClientApp does, and count them per class."""
    context = Context(0, 0, dict(settings.node_config), RecordDict(), {})
    config = at_this_node(context, settings.config)
    held = configured_data(context, config)
    if isinstance(held, PartitionClaim) and not 0 <= held.partition_id < held.num_partitions:
        raise DataError(
            f"--node-config: partition-id={held.partition_id} is not between 0 and "
            f"num-partitions={held.num_partitions} less one"
        )
    data = client_data(config, held, torch.device("cpu"))
    schema = image_schema(config)
    channels, height, width = schema.image_shape
    counts = zip(schema.class_names, data.train.class_counts.tolist(), strict=True)
    per_class = ", ".join(f"{name} {count}" for name, count in counts)
    kept = f"; for validation: {len(data.validation)}" if data.validation else ""
    return (
        f"{len(data.train)} training images of {height}x{width} pixels and {channels} channel(s); "
        f"per class: {per_class}; held out: {len(data.held_out)}{kept}"
    )


def check_key(settings: NodeSettings) -> str:
    """Read the node's private key as `flower-supernode` does."""
    path = settings.private_key
    key = read_key(path)
    if open_to_others(path):
        raise CredentialError(f"{path} is open to other users of this machine: chmod 600 {path}")
    return f"{path} is an OpenSSH key on {key.curve.name}, closed to others"


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a node's private key as `flower-supernode` does.

    Raises
    ------
    CredentialError
        If it has a passphrase, or is no OpenSSH key on an elliptic curve.
    """
    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except TypeError as error:
        raise CredentialError(
            f"{path} has a passphrase, which Flower cannot ask for: run ssh-keygen -p -f {path}"
        ) from error
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise CredentialError(
            f"{path} is no readable OpenSSH private key ({error}): fedadb certificates makes one"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CredentialError(f"{path} is no elliptic-curve key: fedadb certificates makes one")
    return key
