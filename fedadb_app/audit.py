"""A node's audit log: what each run asked of it and what it sent, a line each, never rewritten.

``<audit-dir>/audit.jsonl``, where ``audit-dir`` is a key of ``--node-config``. A line is

    {"sha256": H(sha256 of the line before + entry), "entry": {...}}

so a line that was changed, or that follows a gap, does not fit. Whoever rewrites every later line
as well is found out by a hash that was noted elsewhere (`fedadb audit` prints the last one).
Entries hold names, shapes, bytes and norms of tensors and names of metrics: nothing of an image.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedadb_app.errors import DataError, StorageError

FILE = "audit.jsonl"
_LONGEST_LINE = 64 * 2**20  # bytes


@dataclass(frozen=True)
class AuditLine:
    """A line of a log as it was found.

    Attributes
    ----------
    number : int
        From 1.
    entry : dict or None
        What it says; None if it cannot be read.
    fault : str
        What is wrong with it; empty where nothing is.
    sha256 : str
        What it says of itself.
    """

    number: int
    entry: dict[str, Any] | None
    fault: str
    sha256: str


def append(folder: Path, entry: dict[str, Any]) -> None:
    """Add an entry to the end of a folder's log, and wait until the disk has it.

    Raises
    ------
    StorageError
        If the disk does not take it.
    """
    path = folder / FILE
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(folder / f".{FILE}.lock"):
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with open(number, "r+b") as file:
                last = _last_line(path)
                sha256 = _seal(_claimed(last), entry)
                line = json.dumps({"sha256": sha256, "entry": entry}, ensure_ascii=False)
                # After a crash the last line may have no end.
                broken = b"" if last.endswith(b"\n") or not last else b"\n"
                file.write(broken + line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(
            f"this node's audit log cannot be written ({error.strerror or error})"
        ) from error


def read(path: Path) -> Iterator[AuditLine]:
    """Yield the lines of a log, of its folder or file, each checked against the one before.

    Raises
    ------
    DataError
        If there is no such file, or it cannot be read.
    """
    file = path / FILE if path.is_dir() else path
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror or error})") from error
    before = ""
    for number, raw in enumerate(content.splitlines(keepends=True), start=1):
        entry, sha256 = _parsed(raw)
        fault = ""
        if entry is None:
            fault = "damaged: it is no entry of a log"
        elif not raw.endswith(b"\n"):
            fault = "damaged: it has no end"
        elif sha256 != _seal(before, entry):
            fault = "the chain is broken: it was changed, or what stood before it was"
        yield AuditLine(number, entry, fault, sha256)
        before = sha256


def _seal(before: str, entry: dict[str, Any]) -> str:
    text = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(f"{before} {text}".encode()).hexdigest()


def _parsed(raw: bytes) -> tuple[dict[str, Any] | None, str]:
    try:
        line = json.loads(raw)
        entry, sha256 = line["entry"], line["sha256"]
    except (ValueError, KeyError, TypeError):
        return None, ""
    whole = isinstance(entry, dict) and isinstance(sha256, str) and len(line) == 2
    return (entry, sha256) if whole else (None, "")


def _claimed(raw: bytes) -> str:
    return _parsed(raw)[1]


def _last_line(path: Path) -> bytes:
    """Return the last line, with its end if it has one, reading no more than that."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        block = 4096
        while True:
            start = max(0, size - block)
            file.seek(start)
            tail = file.read(size - start)
            cut = tail.rstrip(b"\n").rfind(b"\n")
            if cut >= 0 or start == 0 or block > _LONGEST_LINE:
                return tail[cut + 1 :]
            block *= 4
