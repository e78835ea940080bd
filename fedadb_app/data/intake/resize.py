"""From any size and one or three channels to those of the federation."""

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from fedadb_app.data.arrays import Shape
from fedadb_app.data.intake.options import Resize

Pixels = npt.NDArray[np.uint8]
"""``(height, width, 1 or 3)``."""


def shaped(pixels: Pixels, shape: Shape, how: Resize) -> Pixels:
    """Return an image in another shape; one that has it already comes back as it is.

    Grey becomes RGB by repetition, RGB grey by its luminance (ITU-R 601-2, as Pillow's). Sizes
    change by Pillow's bilinear filter, which is antialiased where an image shrinks.

    Parameters
    ----------
    pixels : numpy.ndarray
        uint8, ``(height, width, 1 or 3)``.
    shape : tuple[int, int, int]
        Channels, height, width of the result.
    how : {"fit", "crop", "stretch"}
        ``fit`` keeps the whole image, with black bars at two sides; ``crop`` keeps its middle,
        without bars; ``stretch`` lets the sides' ratio change.

    Returns
    -------
    numpy.ndarray
        uint8, ``(height, width, channels)``.
    """
    channels, height, width = shape
    if pixels.shape == (height, width, channels):
        return pixels
    image = Image.fromarray(
        np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    )
    wanted = "L" if channels == 1 else "RGB"
    if image.mode != wanted:
        image = image.convert(wanted)
    if image.size != (width, height):
        image = _resized(image, width, height, how)
    return np.asarray(image).reshape(height, width, channels)


def _resized(image: Image.Image, width: int, height: int, how: Resize) -> Image.Image:
    if how == "stretch":
        return image.resize((width, height), Image.Resampling.BILINEAR)
    if how == "crop":
        return ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    ratio = min(width / image.width, height / image.height)
    small = image.resize(
        (max(1, round(image.width * ratio)), max(1, round(image.height * ratio))),
        Image.Resampling.BILINEAR,
    )
    canvas = Image.new(image.mode, (width, height))
    canvas.paste(small, ((width - small.width) // 2, (height - small.height) // 2))
    return canvas
