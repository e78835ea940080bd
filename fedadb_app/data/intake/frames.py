"""What a decoder hands on: the images in one file, upright, and what there is to say of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedadb_app.data.intake.intensity import Window
from fedadb_app.data.intake.options import Transparency

MOST_PIXELS = 100_000_000
"""A larger image is refused: decoding it would take gigabytes."""


class ImageError(Exception):
    """A file that cannot become an image of the data set; the message says why.

    Attributes
    ----------
    kind : str
        In a few words, for counting.
    """

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


@dataclass(frozen=True)
class Frame:
    """One image, upright, as its file has it.

    Attributes
    ----------
    pixels : numpy.ndarray
        ``(height, width, 1 or 3)``; uint8, or of any other number type where there is more to it.
    alpha : numpy.ndarray or None
        uint8, ``(height, width)``, 0 = transparent.
    inverted : bool
        Whether high values are dark.
    """

    pixels: npt.NDArray[np.generic]
    alpha: npt.NDArray[np.uint8] | None = None
    inverted: bool = False

    @property
    def deep(self) -> bool:
        """Whether there is more than 8 unsigned bits to a value."""
        return self.pixels.dtype != np.uint8

    def to_8_bits(self, window: Window | None, transparency: Transparency) -> npt.NDArray[np.uint8]:
        """Return uint8 pixels, ``(height, width, 1 or 3)``, opaque, with high values bright.

        Raises
        ------
        ImageError
            Without a window for deep pixels, or with transparent pixels that are to be refused.
        """
        pixels = _scaled(self.pixels, window)
        if self.inverted:
            pixels = 255 - pixels
        if self.alpha is None or self.alpha.min() == 255:
            return pixels
        if transparency == "refuse":
            raise ImageError(
                "with transparent pixels",
                'has transparent pixels: save it without, or say transparency="black" or "white"',
            )
        share = self.alpha[..., None].astype(np.float64) / 255
        ground = 0 if transparency == "black" else 255
        return np.floor(pixels * share + ground * (1 - share) + 0.5).astype(np.uint8)


def _scaled(pixels: npt.NDArray[np.generic], window: Window | None) -> npt.NDArray[np.uint8]:
    if pixels.dtype == np.uint8:
        return pixels.astype(np.uint8, copy=False)
    if pixels.dtype.kind not in "iuf":
        raise ImageError(f"of {pixels.dtype}", f"has values of the type {pixels.dtype}")
    if pixels.dtype.kind == "f" and not np.isfinite(pixels.astype(np.float64)).all():
        raise ImageError("with values that are no numbers", "holds values that are no numbers")
    if window is None:
        low, high = pixels.min(), pixels.max()
        raise ImageError(
            "of more than 8 bits",
            f"has more than 8 bits a channel ({pixels.dtype}, {low:g} to {high:g}): say which "
            f'values become black and white, as in intensity="0,4095", or save it with 8',
        )
    return window.to_8_bits(pixels)


@dataclass(frozen=True)
class Decoded:
    """The images in one file.

    Attributes
    ----------
    kind : str
        The format, as ``PNG``.
    mode : str
        Channels and depth, as ``RGB, 8 bits``.
    frames : tuple[Frame, ...]
        At least one.
    notes : tuple[str, ...]
        What was done, or was not, in words that are counted.
    """

    kind: str
    mode: str
    frames: tuple[Frame, ...]
    notes: tuple[str, ...] = field(default=())


def upright(pixels: npt.NDArray[np.generic], orientation: int) -> npt.NDArray[np.generic]:
    """Turn ``(height, width, …)`` as an EXIF or TIFF orientation tag says (1 to 8)."""
    if orientation >= 5:  # rows are columns
        pixels = pixels.swapaxes(0, 1)
        orientation = {5: 1, 6: 2, 7: 3, 8: 4}.get(orientation, 1)
    if orientation in (3, 4):
        pixels = pixels[::-1]
    if orientation in (2, 3):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def check_frames(count: int, several: str, what: str = "images") -> None:
    """Refuse a file of several images unless each is to be taken."""
    if count > 1 and several != "each":
        raise ImageError(
            "of several images",
            f'holds {count} {what}: say frames="each" to take each of them with the label of the '
            f"file, or save the one that is meant",
        )


def check_pixels(height: int, width: int, frames: int = 1) -> None:
    """Refuse an image that would not fit into memory, before it is decoded."""
    if height * width * frames > MOST_PIXELS:
        raise ImageError(
            "too large",
            f"has {height}x{width} pixels{f' in {frames} images' if frames > 1 else ''}; "
            f"{MOST_PIXELS:,} are the most that are decoded".replace(",", " "),
        )


@contextmanager
def decoding() -> Iterator[None]:
    """Turn whatever a decoder raises for a damaged file into an `ImageError`."""
    try:
        yield
    except ImageError:
        raise
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise ImageError(
            "that cannot be read", f"cannot be read as an image: {said[:300]}"
        ) from error
