"""What every reader of images shares: the sizes allowed, what is held out, arrays on disk."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedadb_app.errors import DataError

SMALLEST_SIDE, LARGEST_SIDE = 28, 1024
"""Image sides, in pixels, that the models accept."""


MOST_CLASSES = 10_000
"""More classes than this are taken for a mistake, such as identifiers in place of labels."""

VALIDATION = "validation.json"
"""A number: how many of the training images, the last of them, are an official validation part."""

_HELD_OUT_EVERY = 5

Shape = tuple[int, int, int]
"""Channels, height, width."""


@dataclass(frozen=True)
class ImageSchema:
    """What the images of all clients of a federation have in common.

    Attributes
    ----------
    class_names : tuple[str, ...]
        Index = label.
    image_shape : tuple[int, int, int]
        Channels, height, width.
    """

    class_names: tuple[str, ...]
    image_shape: Shape

    @property
    def num_classes(self) -> int:
        """Number of classes, those without a sample included."""
        return len(self.class_names)


def held_out(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Mark the samples that are kept from training: every fifth of each class, in order.

    Of a class of two to four samples it is the last, of a single one none: every class keeps a
    training sample.

    Parameters
    ----------
    labels : numpy.ndarray
        int64, ``(N,)``.

    Returns
    -------
    numpy.ndarray
        bool, ``(N,)``.
    """
    marked = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        samples = np.flatnonzero(labels == label)
        fifths = samples[_HELD_OUT_EVERY - 1 :: _HELD_OUT_EVERY]
        marked[fifths if len(fifths) else samples[1:][-1:]] = True
    return marked


def create_array(target: Path, shape: tuple[int, ...]) -> Any:  # noqa: ANN401
    """Create a uint8 array on disk, with its space reserved."""
    array = np.lib.format.open_memmap(target, "w+", np.uint8, shape)
    if hasattr(os, "posix_fallocate"):  # without it a full disk ends the process with SIGBUS
        with target.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, target.stat().st_size)
    return array


def check_size(where: object, height: int, width: int, channels: int) -> None:
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
