"""TIFF files of more than 8 bits, of planes or of several pages, which Pillow bends."""

import logging
from pathlib import Path

import numpy as np
from tifffile import TiffFile, TiffPage

from fedadb_app.data.intake.frames import (
    Decoded,
    Frame,
    ImageError,
    check_frames,
    check_pixels,
    upright,
)
from fedadb_app.data.intake.intensity import eight_bits
from fedadb_app.data.intake.options import IntakeOptions

_MIN_IS_WHITE, _MIN_IS_BLACK, _RGB = 0, 1, 2
_CONTIGUOUS = 1
_ALPHA_KINDS = (1, 2)
_REDUCED_OR_MASK = 1 | 4

logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # what it says of a file, we say once


def decode_deep_tiff(path: Path, options: IntakeOptions) -> Decoded | None:
    """Decode a TIFF whose samples are not plain bytes side by side; None leaves it to Pillow.

    Raises
    ------
    ImageError
        For several pages that are not to be taken one by one, and for channels stored as pages.
    """
    with TiffFile(path) as file:
        pages = [page.aspage() for page in file.pages]
        # Previews and masks of an image are no further images.
        pages = [p for p in pages if not int(p.subfiletype) & _REDUCED_OR_MASK] or pages[:1]
        if not pages:
            raise ImageError("that cannot be read", "cannot be read as an image: no page")
        _refuse_channels(file)
        check_frames(_images(file, pages), options.frames)
        check_pixels(pages[0].imagelength, pages[0].imagewidth, len(pages))
        if all(_plain(page) for page in pages) and len(pages) == len(file.pages):
            return None
        if _images(file, pages) != len(pages):  # ImageJ writes one page for a whole large stack
            raise ImageError(
                "of several images", "holds a stack that only ImageJ reads: save its slices"
            )
        notes = ["turned upright by its orientation tag"] * (_orientation(pages[0]) != 1)
        first = pages[0]
        mode = f"{first.samplesperpixel} x {first.dtype}, {first.bitspersample} bits"
        return Decoded("TIFF", mode, tuple(_frame(page) for page in pages), tuple(notes))


def _images(file: TiffFile, pages: list[TiffPage]) -> int:
    """Return how many images there are, those that ImageJ hides behind one page included."""
    stated = (file.imagej_metadata or {}).get("images", 1) if file.is_imagej else 1
    return max(len(pages), int(stated))


def _refuse_channels(file: TiffFile) -> None:
    """Refuse channels that are stored as images: they are no frames."""
    channels = (file.imagej_metadata or {}).get("channels", 1) if file.is_imagej else 1
    if not file.is_imagej and file.is_ome:
        series = file.series[0]
        sizes = dict(zip(series.axes, series.shape, strict=False))
        channels = sizes.get("C", 1)
    if int(channels) > 1:
        raise ImageError(
            "of separate channels",
            f"holds {channels} channels as separate images (an ImageJ composite): save it as RGB",
        )


def _plain(page: TiffPage) -> bool:
    """Say whether Pillow reads a page as it is: unsigned, at most 8 bits, samples side by side."""
    return (
        int(page.bitspersample) <= 8
        and int(page.sampleformat) in (1, 4)
        and (int(page.planarconfig) == _CONTIGUOUS or page.samplesperpixel == 1)
        and page.imagedepth == 1
    )


def _orientation(page: TiffPage) -> int:
    tag = page.tags.get("Orientation")
    return int(tag.value) if tag is not None else 1


def _frame(page: TiffPage) -> Frame:
    try:
        values = page.asarray()
    except ValueError as error:
        if "imagecodecs" in str(error):
            raise ImageError(
                "with a compression that is not read",
                f"is compressed as {_name(page.compression)}, not read here: save it plain, or "
                f"pip install imagecodecs",
            ) from error
        raise
    samples = page.samplesperpixel
    if values.ndim == 2:
        values = values[..., None]
    elif values.ndim == 3 and int(page.planarconfig) != _CONTIGUOUS:
        values = values.transpose(1, 2, 0)
    colour = int(page.photometric)
    channels = {_MIN_IS_WHITE: 1, _MIN_IS_BLACK: 1, _RGB: 3}.get(colour)
    extra = [int(kind) for kind in page.extrasamples]
    alpha = samples - 1 == channels and len(extra) == 1 and extra[0] in _ALPHA_KINDS
    if channels is None or values.ndim != 3 or samples != channels + alpha:
        raise ImageError(
            f"of {samples} channels",
            f"has {samples} channels of the kind {_name(page.photometric)}; grey or RGB, with or "
            f"without transparency, are read",
        )
    values = upright(values, _orientation(page))
    layer = _alpha(values[..., -1]) if alpha else None
    return Frame(values[..., :channels], layer, inverted=colour == _MIN_IS_WHITE)


def _name(tag: object) -> str:
    return str(getattr(tag, "name", tag))


def _alpha(values: np.ndarray) -> np.ndarray:
    most = np.iinfo(values.dtype).max if values.dtype.kind in "iu" else 1.0
    return eight_bits(values.astype(np.float64) / most)
