"""Two apps to run: this checkout, and one whose processes follow a script."""

import shutil
from pathlib import Path

from helpers import REPOSITORY

_REHEARSED_CLIENT = """

from fedadb_app import rehearsal


@app.train()
def rehearse(message: Message, context: Context) -> Message:
    return rehearsal.rehearse(train, message, context)
"""
_REHEARSED_SERVER = """

from fedadb_app.rehearsal import LingeringFolder as RunFolder
"""


def copy_app(target: Path) -> Path:
    """Copy what a FAB carries out of the checkout."""
    target.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "client_app.py", "server_app.py"):
        shutil.copy(REPOSITORY / name, target)
    for name in ("fedadb_app", "strategies"):
        shutil.copytree(
            REPOSITORY / name, target / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    return target


def rehearsed(target: Path) -> Path:
    """Let a copy of the app follow scripts: its clients' training, and its server's end."""
    shutil.copy(Path(__file__).parent / "rehearsal.py", target / "fedadb_app")
    client, server = target / "client_app.py", target / "server_app.py"
    code, handler = client.read_text(), "@app.train(mods=[local_privacy])\n"
    assert code.count(handler) == 1
    client.write_text(code.replace(handler, "") + _REHEARSED_CLIENT)
    with server.open("a") as file:
        file.write(_REHEARSED_SERVER)
    return target
