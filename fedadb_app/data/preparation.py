"""How pixels become model input, per data set: normalisation and the lineage's augmentation.

Values and rules are those of the loaders of FedNTD, FedLMD and FedSOL ("the lineage"); FedADB's
paper states none.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

PAD = 4
"""Pixels added on each side before a random crop of the former size."""


@dataclass(frozen=True)
class Preparation:
    """How the images of one data set are normalised and, where asked for, augmented.

    Attributes
    ----------
    mean, std : tuple[float, ...]
        Of a pixel in [0, 1]: one value for all channels, or one for each.
    crop : {"constant", "reflect"} or None
        Random crop, out of the image with a black or a mirrored border of `PAD` pixels.
    cutout : int
        Side of the square, at a random centre, that is set to the mean (DeVries and Taylor, 2017);
        0 for none. Horizontal flips are always part of the augmentation.
    """

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    crop: Literal["constant", "reflect"] | None = None
    cutout: int = 0

    @cached_property
    def valid_range(self) -> tuple[Tensor, Tensor]:
        """The images of 0 and 1 under the normalisation, each ``(1 or channels, 1, 1)``."""
        black = [(0 - m) / s for m, s in zip(self.mean, self.std, strict=True)]
        white = [(1 - m) / s for m, s in zip(self.mean, self.std, strict=True)]
        return torch.tensor(black)[:, None, None], torch.tensor(white)[:, None, None]

    def normalise(self, pixels: Tensor, device: torch.device) -> Tensor:
        """Turn uint8 pixels, ``(B, channels, height, width)``, into ((p / 255) - mean) / std."""
        scale = torch.tensor([1 / (255 * s) for s in self.std])[:, None, None]
        black, _ = self.valid_range
        return pixels.to(device, torch.float32).mul_(scale.to(device)).add_(black.to(device))

    def to_pixels(self, images: Tensor) -> Tensor:
        """Turn float32 model input into uint8 pixels, the inverse of `normalise`."""
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        return images.mul(std).add_(mean).mul_(255).round_().clamp_(0, 255).byte()

    def draw(self, size: int, height: int, width: int, generator: torch.Generator) -> Tensor:
        """Draw the augmentation of `size` images, int64 ``(size, 5)``.

        Whether it is mirrored; where the crop begins in the padded image; the cutout's centre.
        """
        draws = torch.zeros(size, 5, dtype=torch.int64)
        draws[:, 0] = torch.rand(size, generator=generator) < 0.5
        if self.crop:
            draws[:, 1:3] = torch.randint(2 * PAD + 1, (size, 2), generator=generator)
        if self.cutout:
            draws[:, 3] = torch.randint(height, (size,), generator=generator)
            draws[:, 4] = torch.randint(width, (size,), generator=generator)
        return draws

    def augment(self, pixels: Tensor, device: torch.device, draws: Tensor) -> Tensor:
        """Crop, normalise, mirror and cut out, as drawn."""
        if self.crop:
            pixels = _cropped(pixels, draws[:, 1:3], self.crop)
        images = self.normalise(pixels, device)
        mirrored = draws[:, 0].bool()
        images[mirrored] = images[mirrored].flip(-1)
        if self.cutout:
            centres = draws[:, 3:].to(device)
            images.masked_fill_(_square(self.cutout, centres, images.shape[-2:]), 0.0)
        return images


def _cropped(pixels: Tensor, corners: Tensor, border: str) -> Tensor:
    """Cut images out of their padded selves, from the corner of each, ``(B, 2)``, on."""
    height, width = pixels.shape[-2:]
    # as floats, because PyTorch does not mirror bytes
    padded = F.pad(pixels.float(), (PAD,) * 4, border).byte()
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    top, left = corners.unbind(1)
    return windows[torch.arange(len(pixels)), :, top, left]


def _square(side: int, centres: Tensor, shape: torch.Size) -> Tensor:
    """Say which pixels lie in the square around each centre, which the border may cut off."""
    half = side // 2
    rows, columns = (
        torch.arange(length, device=centres.device) - centre[:, None]
        for length, centre in zip(shape, centres.unbind(1), strict=True)
    )
    down, across = ((-half <= x) & (x < half) for x in (rows, columns))
    return (down[:, :, None] & across[:, None, :])[:, None]


CENTRED = Preparation()
"""Of every other data set, as the lineage has it for MedMNIST: [0, 1] becomes [-1, 1]."""
