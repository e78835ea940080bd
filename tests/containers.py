"""The files of deploy/, read, and their commands in a sandbox that stands in for a container.

No container engine is needed: bubblewrap gives a process a root of its own that cannot be written
to, a user that is not root, and what the compose file mounts, and nothing else.
"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from dockerfile_parse import DockerfileParser
from helpers import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
CONTAINERFILE = DEPLOY / "Containerfile"
COMPOSE_FILES = {side: DEPLOY / f"{side}.compose.yaml" for side in ("superlink", "supernode")}
USER = 10001

needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap (bwrap) is not installed"
)

_NOT_OF_THE_MACHINE = {"dev", "proc", "sys", "tmp", "run", "var", "data", "opt", "src"}
"""What a container has of its own below its root; the rest is the machine's, to be read only."""


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Containerfile and what they say, without comments."""
    parser = DockerfileParser(fileobj=CONTAINERFILE.open("rb"))
    steps = [(step["instruction"], step["value"]) for step in parser.structure]
    return [step for step in steps if step[0] != "COMMENT"]


def image_environment() -> dict[str, str]:
    """Return what the image sets for every process."""
    parser = DockerfileParser(fileobj=CONTAINERFILE.open("rb"))
    return dict(parser.envs)


def services(side: str) -> dict[str, dict[str, Any]]:
    """Return the services of a compose file."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE_FILES[side].read_text())["services"]
    return found


@dataclass(frozen=True)
class Sandbox:
    """A root that cannot be written to but for what is mounted.

    Attributes
    ----------
    writable, readable : dict[str, Path]
        Path in the sandbox -> file or folder of this machine.
    empty : tuple[str, ...]
        Paths in the sandbox that are empty, writable and gone with it.
    environment : dict[str, str]
        What the process finds set.
    """

    writable: dict[str, Path]
    readable: dict[str, Path]
    empty: tuple[str, ...]
    environment: dict[str, str]

    def command(self, *words: str, user: int = USER, folder: str = "/") -> list[str]:
        """Return the command that runs another one in the sandbox, ending with its parent."""
        bwrap = ["bwrap", "--die-with-parent", "--unshare-user", "--uid", str(user)]
        bwrap += ["--gid", str(user), "--unshare-pid", "--unshare-ipc", "--clearenv"]
        bwrap += ["--cap-drop", "ALL", "--tmpfs", "/"]
        for path in sorted(Path("/").iterdir()):
            if path.name in _NOT_OF_THE_MACHINE:
                continue
            if path.is_symlink():
                bwrap += ["--symlink", str(path.readlink()), str(path)]
            else:
                bwrap += ["--ro-bind", str(path), str(path)]
        bwrap += ["--dev", "/dev", "--proc", "/proc"]
        for path in self.empty:
            bwrap += ["--tmpfs", path]
        for where in {str(REPOSITORY), sys.prefix, sys.base_prefix}:  # wherever they lie
            bwrap += ["--ro-bind", where, where]
        for option, mounts in (("--bind", self.writable), ("--ro-bind", self.readable)):
            for inside, outside in mounts.items():
                bwrap += [option, str(outside), inside]
        for name, value in self.environment.items():
            bwrap += ["--setenv", name, value]
        return [*bwrap, "--remount-ro", "/", "--chdir", folder, "--", *words]
