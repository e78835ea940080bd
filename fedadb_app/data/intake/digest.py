"""Whether files are still those that were prepared, at the price of looking at their names."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from fedadb_app.data.intake.names import shown
from fedadb_app.errors import DataError

_SAMPLED_FILES, _SAMPLED_BYTES = 64, 1 << 16


def file_stamp(files: Iterable[tuple[str, os.stat_result]], where: Path, facts: object) -> str:
    """Return a digest that changes when a file does, or what is made of it.

    Of each file it covers the path, the inode, the size and both times: a swap of two folders
    moves inodes, a copy that keeps the time of modification has a new time of change. Of 64
    evenly spaced files it covers the first 64 KiB, for file systems that keep none of these.

    Parameters
    ----------
    files : Iterable of (str, os.stat_result)
        Paths below `where`, with what the system says of them, in a fixed order.
    where : Path
        The folder that the paths are relative to.
    facts : object
        Whatever else the result follows from; by its ``repr``.

    Returns
    -------
    str
        16 hexadecimal digits.

    Raises
    ------
    DataError
        If one of the sampled files cannot be read.
    """
    listed = list(files)
    digest = hashlib.sha256(f"{where}|{facts!r}\n".encode(errors="surrogateescape"))
    for name, status in listed:
        line = (
            f"{name}|{status.st_ino}|{status.st_size}|{status.st_mtime_ns}|{status.st_ctime_ns}\n"
        )
        digest.update(os.fsencode(line))
    step = max(1, len(listed) // _SAMPLED_FILES)
    for name, _ in listed[::step]:
        try:
            with open(where / name, "rb") as file:
                digest.update(file.read(_SAMPLED_BYTES))
        except OSError as error:
            raise DataError(f"{shown(where / name)} cannot be read: {error.strerror}") from error
    return digest.hexdigest()[:16]


def content_digest(folder: Path) -> str:
    """Return a digest of prepared arrays: the same wherever the same images were prepared."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.npy")):
        digest.update(f"{file.name}\n".encode())
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()
