"""From more than 8 bits to 8: by a stated linear window, never by dropping the low byte."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedadb_app.errors import ConfigError

_SAMPLED_PIXELS = 4096
"""Pixels of an image, evenly spaced, that percentiles are taken over."""

_NUMBER = r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?"
_WINDOW = re.compile(rf"\s*({_NUMBER})(%?)\s*,\s*({_NUMBER})(%?)\s*")


def eight_bits(share: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """Return ``round(255 share)``, halves upwards, of shares that are cut off at 0 and 1."""
    return np.floor(np.clip(share, 0, 1) * 255 + 0.5).astype(np.uint8)


@dataclass(frozen=True)
class Window:
    """A linear window: `low` and below become 0, `high` and above 255."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g},{self.high:g}"

    def to_8_bits(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
        """Return ``round(255 (v - low) / (high - low))``, cut off at 0 and 255, as uint8."""
        scaled = (values.astype(np.float64) - self.low) * (255 / (self.high - self.low))
        return np.floor(np.clip(scaled, 0, 255) + 0.5).astype(np.uint8)


@dataclass(frozen=True)
class Percentiles:
    """A window that follows from the training images: these percentages of their pixels."""

    low: float
    high: float

    def window(self, images: Iterable[npt.NDArray[np.generic]]) -> Window | None:
        """Return the window for these images, None where there are none.

        The percentiles are those of up to 4096 evenly spaced pixels of each image.

        Raises
        ------
        ConfigError
            If both percentiles are the same value.
        """
        sampled = [
            image.reshape(-1)[:: max(1, image.size // _SAMPLED_PIXELS)].astype(np.float32)
            for image in images
        ]
        if not sampled:
            return None
        low, high = np.percentile(np.concatenate(sampled), (self.low, self.high))
        if low == high:
            raise ConfigError(
                f'intensity="{self.low:g}%,{self.high:g}%": both are the value {low:g} in these '
                f"images; give the window as two values"
            )
        return Window(float(low), float(high))


def parse_intensity(text: str) -> Window | Percentiles | None:
    """Read ``"0,4095"`` or ``"1%,99%"``; None for ``""``.

    Raises
    ------
    ConfigError
        If it is neither, or not from low to high.
    """
    if not text:
        return None
    match = _WINDOW.fullmatch(text)
    if match and match[2] == match[4]:
        low, high = float(match[1]), float(match[3])
        percent = bool(match[2])
        if (
            low < high
            and np.isfinite([low, high]).all()
            and not (percent and (low < 0 or high > 100))
        ):
            return Percentiles(low, high) if percent else Window(low, high)
    raise ConfigError(
        f'intensity="{text}" is not allowed: expected the values that become black and white, as '
        f'in "0,4095", or percentages of the training pixels, as in "1%,99%"'
    )
