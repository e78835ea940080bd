"""Official files: there, or fetched once. Only the server (or ``fedadb data``) downloads."""

import http.client
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from fedadb_app.errors import DataError, StorageError
from fedadb_app.runs.atomic import move


def need_files(
    name: str, home: Path, files: list[Path], fetch: Callable[[Path], object] | None
) -> None:
    """See to it that official files are there; `fetch`, which checks them, is None on a client."""
    missing = [file for file in files if not file.is_file()]
    if not missing:
        return
    if fetch is None:
        raise DataError(
            f'dataset="{name}": {missing[0]} does not exist on this machine; put the official '
            f"file there (clients never download) or run: fedadb data {name}"
        )
    _fetch_once(name, home, files, fetch)


def _fetch_once(name: str, home: Path, files: list[Path], fetch: Callable[[Path], object]) -> None:
    """Fetch official files once: under a lock, checked, then moved into place."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / f"{name}.lock"):
            if all(file.is_file() for file in files):
                return
            with tempfile.TemporaryDirectory(dir=home) as scratch:
                fetch(Path(scratch))
                for file in files:
                    file.parent.mkdir(exist_ok=True)
                    move(Path(scratch) / file.relative_to(home), file)
    except (OSError, RuntimeError, http.client.HTTPException, StorageError) as error:
        raise DataError(
            f'dataset="{name}": downloading it to {os.path.commonpath(files)} failed ({error}); '
            f"put its files there by hand or set data-dir to the folder that holds them"
        ) from error
