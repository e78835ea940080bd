"""Prepared copies in the cache: what there is, which are of no use any more, and their removal."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedadb_app.data.prepared import FORMAT, cache_folder
from fedadb_app.errors import DataError


@dataclass(frozen=True)
class PreparedCopy:
    """A prepared data set.

    Attributes
    ----------
    folder : Path
        Where it is.
    origin : str
        What it was made of, and how.
    bytes : int
        Its size.
    why_old : str
        Why nothing will read it; empty for what is in use.
    """

    folder: Path
    origin: str
    bytes: int
    why_old: str


def prepared_copies() -> list[PreparedCopy]:
    """Return all prepared copies of this user, the newest first."""
    found = sorted(_folders(), key=lambda folder: folder.stat().st_mtime_ns, reverse=True)
    copies: list[PreparedCopy] = []
    seen: set[str] = set()
    for folder in found:
        try:
            meta = json.loads((folder / "meta.json").read_text())
        except (OSError, ValueError):
            meta = {}
        origin = str(meta.get("origin", ""))
        path = origin.partition(" IntakeOptions(")[0]
        if meta.get("format") != FORMAT:
            why = "of another version of this app, or incomplete"
        elif origin in seen:
            why = "its files have changed since"
        elif path.startswith("/") and not Path(path).exists():
            why = "its files are gone"
        else:
            why = ""
        seen.add(origin)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        copies.append(PreparedCopy(folder, path or folder.name, size, why))
    return copies


def remove(copy: PreparedCopy) -> None:
    """Remove a prepared copy; who has it mapped keeps it until it ends.

    Raises
    ------
    DataError
        If this user may not.
    """
    try:
        shutil.rmtree(copy.folder)
        Path(f"{copy.folder}.lock").unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{copy.folder} cannot be removed: {error.strerror}") from error


def _folders() -> Iterator[Path]:
    home = cache_folder() / "prepared"
    return (p for p in home.iterdir() if p.is_dir()) if home.is_dir() else iter(())
