"""Tensors in one file that is whole or not there at all, for a later session or another machine.

A file is written under a temporary name, flushed to the disk and then renamed, so that a crash at
any instant leaves the file as it was before or as it is after. It is a safetensors file; its
header also holds a text and a checksum over everything. No pickle: reading runs no code.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from fedadb_app.errors import CheckpointError

_TEXT, _CHECKSUM = "text", "sha256"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], text: str = "") -> None:
    """Replace a file, durably, by one with these tensors and this text.

    Raises
    ------
    CheckpointError
        If the disk does not take it; the file is then as it was.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    replace(path, save(plain, {_TEXT: text, _CHECKSUM: _checksum(plain, text)}))


def replace(path: Path, content: bytes) -> None:
    """Replace a file, durably, by one with this content.

    Raises
    ------
    CheckpointError
        If the disk does not take it; the file is then as it was.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        if os.name != "nt":  # the new name, too, must outlive a power failure
            folder = os.open(path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written ({error.strerror})") from error


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
