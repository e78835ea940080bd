"""What a library's net wants for input: its own normalisation, three channels, a size.

A net of torchvision or timm looks at images as its published weights were trained on. Its first
layer makes them of the run's, so that all else (batches, anchors and the pixels they may have)
stays as the data set prepares it, and a gradient with respect to an image passes through.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedadb_app.data.preparation import Preparation


@dataclass(frozen=True)
class Expected:
    """What a net's published weights expect of an image.

    Attributes
    ----------
    mean, std : tuple[float, float, float]
        By which a pixel in [0, 1] is normalised, in RGB.
    sides : tuple[int, int] or None
        Height and width, where it takes no others; every image is stretched to them.
    smallest : int
        Otherwise, of how many pixels the shorter side has to be at least; smaller images are
        enlarged, larger ones stay as they are.
    interpolation : {"bilinear", "bicubic"}
        How an image is resized.
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    sides: tuple[int, int] | None = None
    smallest: int = 64
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"

    def sides_of(self, image_shape: tuple[int, int, int]) -> tuple[int, int]:
        """Return at which height and width the net sees images of a shape."""
        if self.sides is not None:
            return self.sides
        _, height, width = image_shape
        factor = max(1.0, self.smallest / min(height, width))
        return round(height * factor), round(width * factor)


class NetInput(nn.Module):
    """Model input of a data set to that of a net: resized, normalised anew, in RGB.

    With pixels p, a data set's input is x = (p - m) / s, and the net's (p - m') / s' is
    x s / s' + (m - m') / s'. A grey image has its value in each of the three channels, each
    normalised as the net's own: its first layer then computes what one of a single channel would
    whose weights are the sum over the three.

    Parameters
    ----------
    expected : Expected
        m', s' and the sizes.
    prepared : Preparation
        m and s.
    image_shape : tuple[int, int, int]
        Channels, height, width of the images.
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self, expected: Expected, prepared: Preparation, image_shape: tuple[int, int, int]
    ) -> None:
        super().__init__()
        self.sides = expected.sides_of(image_shape)
        self._mode = expected.interpolation
        self._resized = self.sides != image_shape[1:]
        # Averaging pixels where there are too many: without it, thin lines would come and go.
        self._smaller = self.sides[0] < image_shape[1] or self.sides[1] < image_shape[2]
        mean, std, own_mean, own_std = (
            torch.tensor(values, dtype=torch.float64)[:, None, None]
            for values in (expected.mean, expected.std, prepared.mean, prepared.std)
        )
        # Neither is trained, averaged or sent: every machine has them.
        self.register_buffer("scale", (own_std / std).float(), persistent=False)
        self.register_buffer("shift", ((own_mean - mean) / std).float(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return ``(B, 3, *sides)`` of images ``(B, 1 or 3, height, width)``."""
        if self._resized:
            images = F.interpolate(
                images, self.sides, mode=self._mode, align_corners=False, antialias=self._smaller
            )
        return images * self.scale + self.shift
