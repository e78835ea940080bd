"""From memory-mapped uint8 arrays to normalised batches on a device.

Whole-tensor batches by index: no DataLoader, no worker processes, one copy per batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

PIXEL_MEAN, PIXEL_STD = 0.5, 0.5
"""Normalisation of a pixel in [0, 1], per channel."""

VALID_RANGE = ((0.0 - PIXEL_MEAN) / PIXEL_STD, (1.0 - PIXEL_MEAN) / PIXEL_STD)
"""The image of [0, 1] under the normalisation: where a valid model input lies."""


def normalise(pixels: Tensor, device: torch.device) -> Tensor:
    """Turn uint8 pixels into float32 model input, ((p / 255) - mean) / std."""
    scale, shift = 1 / (255 * PIXEL_STD), -PIXEL_MEAN / PIXEL_STD
    return pixels.to(device, torch.float32).mul_(scale).add_(shift)


@dataclass(frozen=True)
class LocalData:
    """The samples one client holds.

    Attributes
    ----------
    images : torch.Tensor
        uint8, ``(N, channels, height, width)``: the machine's shared memory map, all clients' rows.
    positions : torch.Tensor
        int64, ``(n_k,)``: which rows are this client's.
    labels : torch.Tensor
        int64, ``(n_k,)``, on the device.
    num_classes : int
        C, of the whole federation.
    device : torch.device
        Where batches are wanted.
    flip : bool
        Whether batches are augmented by random horizontal flips.
    """

    images: Tensor
    positions: Tensor
    labels: Tensor
    num_classes: int
    device: torch.device
    flip: bool = False

    @classmethod
    def from_arrays(
        cls,
        images: npt.NDArray[np.uint8],
        labels: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        num_classes: int,
        device: torch.device,
        flip: bool = False,
    ) -> "LocalData":
        """Take the rows `positions` of whole-machine arrays, without copying an image."""
        return cls(
            torch.from_numpy(images),
            torch.from_numpy(positions),
            torch.from_numpy(labels[positions]).to(device),
            num_classes,
            device,
            flip,
        )

    def __len__(self) -> int:
        return len(self.positions)

    @cached_property
    def class_counts(self) -> Tensor:
        """n_{k,c}: samples of each class, int64 ``(C,)``."""
        return torch.bincount(self.labels, minlength=self.num_classes)

    def load(self, indices: Tensor, flipped: Tensor) -> Tensor:
        """Return the normalised images at `indices` (positions within this client).

        `flipped`, bool ``(B,)``, says which of them are mirrored left to right.
        """
        images = normalise(self.images[self.positions[indices]], self.device)
        if self.flip:
            images[flipped] = images[flipped].flip(-1)
        return images

    def draw_flips(self, size: int, generator: torch.Generator) -> Tensor:
        """Draw which images are mirrored, bool ``(size,)``; none without augmentation."""
        if not self.flip:
            return torch.zeros(size, dtype=torch.bool)
        return torch.rand(size, generator=generator) < 0.5

    def epoch(self, batch_size: int, generator: torch.Generator) -> Iterator["Batch"]:
        """Yield one shuffled pass over the samples; the last, smaller batch is kept.

        Order and augmentation of the whole pass are drawn at its start: they are the same for all
        methods, whatever these draw or leave unread in between.
        """
        order = torch.randperm(len(self), generator=generator)
        flips = self.draw_flips(len(self), generator)
        pairs = zip(torch.split(order, batch_size), torch.split(flips, batch_size), strict=True)
        for indices, flipped in pairs:
            yield Batch(self, indices, flipped)


@dataclass(frozen=True)
class Batch:
    """Some of a client's samples; their pixels are read when first asked for."""

    data: LocalData
    indices: Tensor
    flipped: Tensor

    def __len__(self) -> int:
        return len(self.indices)

    @cached_property
    def images(self) -> Tensor:
        """Normalised float32 images, ``(B, channels, height, width)``."""
        return self.data.load(self.indices, self.flipped)

    @cached_property
    def labels(self) -> Tensor:
        """Labels, int64 ``(B,)``."""
        return self.data.labels[self.indices.to(self.data.labels.device)]
