"""A folder to fill, and the intake of it."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedadb_app.data.intake.folder import take_in_folder
from fedadb_app.data.intake.options import IntakeOptions
from fedadb_app.data.intake.report import IntakeReport
from fedadb_app.errors import DataError


def noise(seed: int, shape=(28, 28), low=0, high=256, dtype=np.uint8) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def png16(path: Path, pixels: np.ndarray) -> Path:
    """Write ``(height, width, 1 to 4)`` of uint16 as PNG, by the format's own rules."""
    height, width, channels = pixels.shape
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    raw = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)

    def chunk(name: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + checksum

    header = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(raw))
        + chunk(b"IEND", b"")
    )
    return path


class Hospital:
    """A folder of a hospital, and what the intake makes of it."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "hospital"
        self.root.mkdir()
        self._out = tmp_path / "out"
        self._seed = 0

    def path(self, name: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def image(self, name: str, pixels: np.ndarray | None = None, **how) -> Path:
        """Save an image, of noise unless it is given: no two are the same."""
        self._seed += 1
        path = self.path(name)
        Image.fromarray(noise(self._seed) if pixels is None else pixels).save(path, **how)
        return path

    def fill(self, *classes: str, count: int = 5) -> None:
        for name in classes:
            for i in range(count):
                self.image(f"{name}/{i:02}.png")

    def take_in(self, **options) -> tuple[IntakeReport, dict[str, np.ndarray]]:
        number = len(list(self._out.parent.glob("out*")))
        folder = self._out.with_name(f"out{number}")
        folder.mkdir()
        report = take_in_folder(self.root, IntakeOptions(**options), folder, lambda: b"salt")
        return report, {file.stem: np.load(file) for file in folder.glob("*.npy")}

    def as_node(self, **options) -> tuple[IntakeReport, dict[str, np.ndarray]]:
        return self.take_in(class_names=("a", "b"), image_shape=(1, 28, 28), **options)

    def refused(self, *words: object, **options) -> DataError:
        with pytest.raises(DataError) as caught:
            self.take_in(**options)
        said = str(caught.value)
        assert "\n" not in said
        said.encode()  # no half characters
        for word in words:
            assert str(word) in said, said
        return caught.value


@pytest.fixture
def hospital(tmp_path: Path) -> Hospital:
    return Hospital(tmp_path)
