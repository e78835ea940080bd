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

from fedadb_app.data.preparation import CENTRED, Preparation


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
    augmented : bool
        Whether batches are augmented at random.
    preparation : Preparation
        How pixels become model input.
    """

    images: Tensor
    positions: Tensor
    labels: Tensor
    num_classes: int
    device: torch.device
    augmented: bool = False
    preparation: Preparation = CENTRED

    @classmethod
    def from_arrays(
        cls,
        images: npt.NDArray[np.uint8],
        labels: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        num_classes: int,
        device: torch.device,
        augmented: bool = False,
        preparation: Preparation = CENTRED,
    ) -> "LocalData":
        """Take the rows `positions` of whole-machine arrays, without copying an image."""
        return cls(
            torch.from_numpy(images),
            torch.from_numpy(positions),
            torch.from_numpy(labels[positions]).to(device),
            num_classes,
            device,
            augmented,
            preparation,
        )

    def __len__(self) -> int:
        return len(self.positions)

    @cached_property
    def class_counts(self) -> Tensor:
        """n_{k,c}: samples of each class, int64 ``(C,)``."""
        return torch.bincount(self.labels, minlength=self.num_classes)

    def load(self, indices: Tensor, draws: Tensor | None = None) -> Tensor:
        """Return the normalised images at `indices` (positions within this client).

        `draws`, from `draw_augmentation`, says how each is augmented; None leaves them as stored.
        """
        pixels = self.images[self.positions[indices]]
        if draws is None:
            return self.preparation.normalise(pixels, self.device)
        return self.preparation.augment(pixels, self.device, draws)

    def draw_augmentation(self, size: int, generator: torch.Generator) -> Tensor | None:
        """Draw how so many images are augmented; None, and nothing drawn, without augmentation."""
        if not self.augmented:
            return None
        height, width = self.images.shape[-2:]
        return self.preparation.draw(size, height, width, generator)

    def epoch(self, batch_size: int, generator: torch.Generator) -> Iterator["Batch"]:
        """Yield one shuffled pass over the samples; the last, smaller batch is kept.

        Order and augmentation of the whole pass are drawn at its start: they are the same for all
        methods, whatever these draw or leave unread in between.
        """
        order = torch.randperm(len(self), generator=generator)
        draws = self.draw_augmentation(len(self), generator)
        for start in range(0, len(self), batch_size):
            part = slice(start, start + batch_size)
            yield Batch(self, order[part], None if draws is None else draws[part])


@dataclass(frozen=True)
class Batch:
    """Some of a client's samples; their pixels are read when first asked for."""

    data: LocalData
    indices: Tensor
    draws: Tensor | None = None

    def __len__(self) -> int:
        return len(self.indices)

    @cached_property
    def images(self) -> Tensor:
        """Normalised float32 images, ``(B, channels, height, width)``."""
        return self.data.load(self.indices, self.draws)

    @cached_property
    def labels(self) -> Tensor:
        """Labels, int64 ``(B,)``."""
        return self.data.labels[self.indices.to(self.data.labels.device)]
