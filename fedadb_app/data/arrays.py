"""What every reader of images shares: the sizes allowed, and arrays on disk."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from fedadb_app.errors import DataError

SMALLEST_SIDE, LARGEST_SIDE = 28, 224
"""Image sides, in pixels, that the models accept."""


MOST_CLASSES = 10_000
"""More classes than this are taken for a mistake, such as identifiers in place of labels."""


def create_array(target: Path, shape: tuple[int, ...]) -> Any:  # noqa: ANN401
    """Create a uint8 array on disk, with its space reserved."""
    array = np.lib.format.open_memmap(target, "w+", np.uint8, shape)
    if hasattr(os, "posix_fallocate"):  # without it a full disk ends the process with SIGBUS
        with target.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, target.stat().st_size)
    return array


def check_size(where: Path, height: int, width: int, channels: int) -> None:
    """Refuse, with a `DataError`, images that no model here takes."""
    if channels not in (1, 3):
        raise DataError(
            f"{where}: images have {channels} channels; 1 (grey) or 3 (RGB) are allowed"
        )
    if min(height, width) < SMALLEST_SIDE or max(height, width) > LARGEST_SIDE:
        raise DataError(
            f"{where}: images are {height}x{width} pixels; "
            f"each side must be {SMALLEST_SIDE} to {LARGEST_SIDE}"
        )


def check_parts_agree(folder: Path, path: Path) -> None:
    """Refuse, with a `DataError`, training and test images of different shapes."""
    train, test = (
        np.load(folder / f"{p}_images.npy", mmap_mode="r").shape[1:] for p in ("train", "test")
    )
    if train != test:
        raise DataError(f"{path}: training images are {train}, test images {test}")
