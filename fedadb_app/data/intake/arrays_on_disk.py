"""Prepared arrays, written image by image: their number need not be known before."""

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedadb_app.data.arrays import Shape

_HEADER_BYTES = 128


class GrowingArray:
    """A uint8 ``.npy`` file, ``(N, channels, height, width)``, whose header is written at the end.

    Parameters
    ----------
    path : Path
        The file.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._file.write(b"\0" * _HEADER_BYTES)
        self.shape: Shape | None = None
        self.count = 0

    def append(self, pixels: npt.NDArray[np.uint8]) -> None:
        """Add an image, ``(height, width, channels)``, shaped as the others."""
        planes = np.ascontiguousarray(pixels.transpose(2, 0, 1))
        channels, height, width = planes.shape
        self.shape = self.shape or (channels, height, width)
        assert planes.shape == self.shape
        self._file.write(planes.tobytes())
        self.count += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._file:
            if kind is None and self.shape is not None:
                self._file.seek(0)
                self._file.write(_header((self.count, *self.shape)))


def _header(shape: tuple[int, ...]) -> bytes:
    """Return the header of a ``.npy`` file, version 1.0, padded to 128 bytes."""
    fields: dict[str, Any] = {"descr": "|u1", "fortran_order": False, "shape": shape}
    start = np.lib.format.magic(1, 0)
    length = _HEADER_BYTES - len(start) - 2
    text = repr(fields).encode("latin1").ljust(length - 1) + b"\n"
    return start + length.to_bytes(2, "little") + text
