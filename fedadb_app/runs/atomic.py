"""A file or folder that is whole or not there at all, for a later session or another machine.

Whatever the app replaces goes this way: written beside its place, flushed to the disk and then
renamed, so that a crash at any instant leaves what was there before or what is there after.
Tensors are a safetensors file whose header also holds a text and a checksum over everything. No
pickle: reading runs no code.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from fedadb_app.errors import CheckpointError, StorageError

_TEXT, _CHECKSUM = "text", "sha256"


def replace(path: Path, content: bytes) -> None:
    """Replace a file, durably, by one with this content.

    Raises
    ------
    StorageError
        If the disk does not take it; the file is then as it was.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
    except OSError as error:
        raise _unwritten(path, error) from error
    move(temporary, path)


def append(path: Path, content: bytes) -> None:
    """Add to the end of a file, at once visible to its readers; `sync` makes it durable.

    A crash may leave the first part of it: readers leave out a line that has no end.

    Raises
    ------
    StorageError
        If the disk does not take it.
    """
    try:
        with path.open("ab") as file:
            file.write(content)
    except OSError as error:
        raise _unwritten(path, error) from error


def move(ready: Path, target: Path) -> None:
    """Put a finished file or folder of the same file system, durably, into the place of another.

    A folder that is in the way is removed first; the place of a file is never empty.

    Raises
    ------
    StorageError
        If the disk does not take it.
    """
    try:
        for path in ready.rglob("*") if ready.is_dir() else ():
            sync(path)
        sync(ready)
        if target.is_dir():
            shutil.rmtree(target)
        ready.replace(target)
        sync(target.parent)  # the new name, too, must outlive a power failure
    except OSError as error:
        raise _unwritten(target, error) from error


def sync(path: Path) -> None:
    """Wait until the disk has what was written to a file, or the names in a folder."""
    if os.name == "nt" and path.is_dir():  # there a folder cannot be opened
        return
    number = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _unwritten(path: Path, error: OSError) -> StorageError:
    return StorageError(f"{path} cannot be written ({error.strerror or error})")


# --- tensors --------------------------------------------------------------------------------


def write_tensors(path: Path, tensors: Mapping[str, Tensor], text: str = "") -> None:
    """Replace a file, durably, by one with these tensors and this text.

    Raises
    ------
    StorageError
        If the disk does not take it; the file is then as it was.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    replace(path, save(plain, {_TEXT: text, _CHECKSUM: _checksum(plain, text)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], str]:
    """Return the tensors and the text of a file of `write_tensors`.

    Raises
    ------
    CheckpointError
        If the file cannot be read, is cut off, or is not what was written.
    """
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text, checksum = header[_TEXT], header[_CHECKSUM]
    except Exception as error:  # whatever damaged bytes do to the parser
        raise CheckpointError(f"{path} is damaged or cannot be read: {error}") from error
    if checksum != _checksum(tensors, text):
        raise CheckpointError(f"{path} is damaged: its content does not fit its checksum")
    return tensors, text


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    return hashlib.sha256(text.encode() + save(dict(tensors))).hexdigest()
