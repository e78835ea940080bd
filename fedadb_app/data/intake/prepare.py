"""From decoded frames to pixels of the wanted shape, in as many threads as there are processors."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedadb_app.data.intake.duplicates import fingerprint
from fedadb_app.data.intake.frames import Frame, ImageError
from fedadb_app.data.intake.intensity import Window
from fedadb_app.data.intake.options import IntakeOptions
from fedadb_app.data.intake.resize import shaped

_MOST_THREADS = 4
_AHEAD = 4
"""Results a thread may be ahead of what is written: memory stays bounded."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class PreparedImage:
    """An image as it is written, and what it was before.

    Attributes
    ----------
    pixels : numpy.ndarray
        uint8, ``(height, width, channels)``.
    size : str
        Height x width before it was resized.
    channels : int
        1 or 3, before.
    deep : bool
        Whether it had more than 8 bits a channel.
    fingerprint : bytes
        Of the pixels before they were resized.
    blank : bool
        Whether they were all of one colour.
    """

    pixels: npt.NDArray[np.uint8]
    size: str
    channels: int
    deep: bool
    fingerprint: bytes
    blank: bool


def prepare(frame: Frame, options: IntakeOptions, window: Window | None) -> PreparedImage:
    """Scale, lay on a ground and, where the shape is stated, resize one frame.

    Raises
    ------
    ImageError
        If it has more than 8 bits and there is no window, or transparent pixels to be refused.
    """
    pixels = frame.to_8_bits(window, options.transparency)
    height, width, channels = pixels.shape
    digest, blank = fingerprint(pixels)
    if options.image_shape is not None:
        pixels = shaped(pixels, options.image_shape, options.resize)
    return PreparedImage(pixels, f"{height}x{width}", channels, frame.deep, digest, blank)


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item]
) -> Iterator[tuple[Item, Result | ImageError]]:
    """Do the work of all items in threads; results come in the items' order, bounded ahead."""
    threads = min(
        _MOST_THREADS, len(os.sched_getaffinity(0)) if _HAS_AFFINITY else os.cpu_count() or 1
    )

    def safely(item: Item) -> Result | ImageError:
        try:
            return work(item)
        except ImageError as error:
            return error

    waiting: deque[tuple[Item, Future[Result | ImageError]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append((item, pool.submit(safely, item)))
                if len(waiting) >= threads * _AHEAD:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


_HAS_AFFINITY = hasattr(os, "sched_getaffinity")
