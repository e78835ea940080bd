"""What a SuperNode is to be started with."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from fedadb_app.assignments import parse_assignments
from fedadb_app.config import RunConfig, Scalar
from fedadb_app.errors import ConfigError
from fedadb_app.flower_internals import parse_node_config


@dataclass(frozen=True)
class NodeSettings:
    """What the SuperNode is to be started with, and the run configuration of the federation.

    Attributes
    ----------
    superlink : str
        host:port.
    root_certificates, private_key : Path
        The CA's certificate and the node's OpenSSH key.
    node_config : Mapping[str, Scalar]
        As `flower-supernode --node-config`.
    config : RunConfig
        As the federation's runs will have it.
    """

    superlink: str
    root_certificates: Path
    private_key: Path
    node_config: Mapping[str, Scalar]
    config: RunConfig

    def __post_init__(self) -> None:
        """Refuse, with a `ConfigError`, what is no address."""
        try:
            parts = urlsplit(f"//{self.superlink}")
            whole = bool(parts.hostname and parts.port) and parts.netloc == self.superlink
            httpx.URL(f"https://{self.superlink}")
        except (ValueError, httpx.InvalidURL):  # e.g. a port that is no number, or too large
            whole = False
        if not whole:
            raise ConfigError(f"--superlink {self.superlink}: expected host:port, without https://")


def node_config_of(text: str) -> Mapping[str, Scalar]:
    """Return what a SuperNode makes of its ``--node-config``.

    Raises
    ------
    ConfigError
        If it refuses the text, or drops a part of it without a word.
    """
    meant = parse_assignments(text)
    try:
        understood = dict(parse_node_config(text))
    except ValueError as error:
        raise ConfigError(f"--node-config {text}: {error}") from error
    if understood != meant:
        lost = [key for key in meant if understood.get(key) != meant[key]]
        raise ConfigError(
            f"--node-config {text}: flower-supernode would not understand {', '.join(lost)}; write "
            f'key=value without blanks around "=", and with blanks between assignments'
        )
    return understood
