"""Which code this is: one hash over the app's own files, for a hospital that approves a version.

Flower names the folder of an installed app after eight digits of its bundle's hash, too few to
rely on. So the files themselves are hashed, as they lie where the app was imported from.
"""

import hashlib
from functools import lru_cache
from pathlib import Path

from fedadb_app.errors import ConfigError

_FILES = ("client_app.py", "server_app.py", "fedadb_app/**/*.py", "strategies/**/*.py")
"""The code in ``fab-include`` of pyproject.toml."""


def app_hash(folder: Path) -> str:
    """Return the SHA-256 of the app in a folder: of each file's name and content, by name.

    Raises
    ------
    ConfigError
        If the folder holds no app.
    """
    found = sorted({path for pattern in _FILES for path in folder.glob(pattern)})
    if not (folder / "client_app.py").is_file():
        raise ConfigError(f"{folder} holds no app: there is no client_app.py")
    digests = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}\n"
        for path in found
    )
    return hashlib.sha256(digests.encode()).hexdigest()


@lru_cache(maxsize=1)
def running_app_hash() -> str:
    """Return the hash of the code that this process runs."""
    return app_hash(Path(__file__).resolve().parents[1])
