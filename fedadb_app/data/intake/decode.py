"""From a file to its images: which decoder reads it, and Pillow's formats."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, ImageOps

from fedadb_app.data.intake.frames import (
    Decoded,
    Frame,
    ImageError,
    check_frames,
    check_pixels,
    decoding,
    upright,
)
from fedadb_app.data.intake.options import IntakeOptions

_FIRST_BYTES = 512
_PPM_HEADER = 4096
_JPEG2000_HEADER = 1 << 16  # the code stream begins behind boxes of any length
_PILLOW = ("PNG", "JPEG", "BMP", "DIB", "GIF", "TIFF", "WEBP", "JPEG2000", "PPM")
_STARTS = {
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"GIF8": "GIF",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",
    b"MM\0+": "TIFF",
    b"\0\0\0\x0cjP  ": "JPEG2000",
    b"\xff\x4f\xff\x51": "JPEG2000",
    **{f"P{digit}".encode() + space: "PPM" for digit in range(1, 7) for space in (b"\n", b" ")},
}
_SUFFIXES = {
    "PNG": {".png", ".apng"},
    "JPEG": {".jpg", ".jpeg", ".jpe", ".jfif"},
    "GIF": {".gif"},
    "BMP": {".bmp", ".dib"},
    "TIFF": {".tif", ".tiff"},
    "WEBP": {".webp"},
    "JPEG2000": {".jp2", ".j2k", ".j2c", ".jpx"},
    "PPM": {".pgm", ".ppm", ".pbm", ".pnm"},
    "DICOM": {".dcm", ".dicom", ".ima"},
    "NIfTI": {".nii", ".nii.gz"},
}
_DICOM_SUFFIXES = _SUFFIXES["DICOM"]
_ORIENTATION = 0x0112


def kind_of(path: Path, suffix: str) -> str | None:
    """Return the format of a file by what it begins with, None where no decoder reads it.

    The suffix decides where a format has no fixed beginning: NIfTI, old DICOM.
    """
    start = _beginning(path, _FIRST_BYTES)
    if start[128:132] == b"DICM":
        return "DICOM"
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "WEBP"
    for beginning, kind in _STARTS.items():
        if start.startswith(beginning):
            return kind
    if suffix in _SUFFIXES["NIfTI"]:
        return "NIfTI"
    return "DICOM" if suffix in _DICOM_SUFFIXES and len(start) == _FIRST_BYTES else None


def _beginning(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        return file.read(most)


def decode(path: Path, kind: str, suffix: str, options: IntakeOptions) -> Decoded:
    """Decode a file whose format is known, or ``""`` where it does not begin like an image.

    Raises
    ------
    ImageError
        If it is damaged, or is what the options refuse.
    """
    if not kind:
        raise ImageError(
            "that cannot be read", "cannot be read as an image: it does not begin like one"
        )
    with decoding():
        decoded = _decoded(path, kind, options)
        notes = list(decoded.notes)
        if suffix.startswith(".") and suffix not in _SUFFIXES[kind]:
            notes.append(f"{kind} by content, {suffix} by name")
        if any(frame.alpha is not None and frame.alpha.min() < 255 for frame in decoded.frames):
            notes.append(f"transparent pixels laid on {options.transparency}")
        if len(decoded.frames) > 1:
            notes.append("file of several images, each taken")
        return Decoded(decoded.kind, decoded.mode, decoded.frames, tuple(notes))


def _decoded(path: Path, kind: str, options: IntakeOptions) -> Decoded:
    if kind == "DICOM":
        from fedadb_app.data.intake.dicom import decode_dicom

        return decode_dicom(path, options)
    if kind == "NIfTI":
        from fedadb_app.data.intake.nifti import decode_nifti

        return decode_nifti(path, options)
    if kind == "TIFF":
        from fedadb_app.data.intake.tiff import decode_deep_tiff

        deep = decode_deep_tiff(path, options)
        if deep is not None:
            return deep
    return _with_pillow(path, kind, options)


def _with_pillow(path: Path, kind: str, options: IntakeOptions) -> Decoded:
    # Opened here, so that Pillow does not map it: a mapped TIFF that lies on its side is garbled.
    with path.open("rb") as content, Image.open(content, formats=_PILLOW) as image:
        check_pixels(image.height, image.width)
        _refuse_shortened(path, kind, image)
        count = int(getattr(image, "n_frames", 1))
        notes = []
        if image.format == "MPO":  # a camera's JPEG, with previews or depth maps behind it
            count = 1
            notes.append("JPEG with further pictures behind the first, as viewers show it")
        elif kind != "TIFF":  # its pages were counted with a better knowledge of them
            check_frames(count, options.frames)
            check_pixels(image.height, image.width, count)
        else:
            count = count if options.frames == "each" else 1
        mode = f"{image.mode}, 8 bits"
        orientation = int(image.getexif().get(_ORIENTATION, 1)) if kind != "TIFF" else 1
        if orientation != 1:
            notes.append("turned upright by its orientation tag")
        if image.info.get("icc_profile"):
            notes.append("colour profile not applied")
        if kind == "PNG" and _png_depth(path) == 16:
            return Decoded(
                kind, f"{image.mode}, 16 bits", (_png_16(path, orientation),), tuple(notes)
            )
        frames = []
        for position in range(count):
            image.seek(position)
            image.load()  # which turns TIFF, and corrects what its size says
            frames.append(_frame(ImageOps.exif_transpose(image)))
        return Decoded(kind, mode, tuple(frames), tuple(notes))


def _frame(image: Image.Image) -> Frame:
    """Return a Pillow image's pixels: grey where it is grey, else RGB; alpha apart."""
    if image.mode not in {
        "1",
        "L",
        "LA",
        "La",
        "P",
        "PA",
        "RGB",
        "RGBA",
        "RGBa",
        "RGBX",
        "CMYK",
        "YCbCr",
    }:
        raise ImageError(
            f"in mode {image.mode}", f"has colours of the kind {image.mode}: save it as RGB"
        )
    transparent = "transparency" in image.info or image.mode in {"LA", "La", "PA", "RGBA", "RGBa"}
    grey = image.mode in {"1", "L", "LA", "La"}
    if transparent:
        layers = np.asarray(image.convert("RGBA"))
        return Frame(layers[..., :1] if grey else layers[..., :3], layers[..., 3])
    pixels = np.asarray(image.convert("L" if grey else "RGB"))
    return Frame(pixels[..., None] if grey else pixels)


def _refuse_shortened(path: Path, kind: str, image: Image.Image) -> None:
    """Refuse what Pillow would cut to 8 bits, or scale, without a word."""
    deep = kind != "PNG" and image.mode[0] in "IF"
    if kind == "JPEG2000":
        start = _beginning(path, _JPEG2000_HEADER)
        marker = start.find(b"\xff\x4f\xff\x51")
        channels = int.from_bytes(start[marker + 40 : marker + 42], "big")
        depths = start[marker + 42 : marker + 42 + 3 * channels : 3]
        deep |= marker < 0 or any((depth & 0x7F) > 7 or depth & 0x80 for depth in depths)
    elif kind == "PPM":
        lines = _beginning(path, _PPM_HEADER).split(b"\n")
        words = [word for line in lines for word in line.split(b"#")[0].split()]
        deep |= len(words) > 3 and words[0] not in {b"P1", b"P4"} and int(words[3]) > 255
    if deep:
        raise ImageError(
            "of more than 8 bits",
            f"has more than 8 bits a channel, not read from {kind}: save it as PNG or TIFF",
        )


def _png_depth(path: Path) -> int:
    return _beginning(path, 25)[24]


def _png_16(path: Path, orientation: int) -> Frame:
    """Read a PNG of 16 bits a channel, of which Pillow by itself keeps the high bytes.

    Its decoder undoes the compression and the filters of such a file; here it is told to unpack
    the samples' high and low bytes apart. Samples are big-endian: what the unpackers for
    little-endian ones take for the high byte is the low one.
    """
    own, layers, key = _unpacked(path)
    if own == "I;16B":
        values = layers.astype(np.uint16)[..., None]
    elif own == "LA;16B":  # as if these four bytes were four channels
        _, both, _ = _unpacked(path, "RGBA")
        values = both[..., 0::2].astype(np.uint16) * 256 + both[..., 1::2]
    else:
        _, low, _ = _unpacked(path, own.replace("16B", "16L"))
        values = layers.astype(np.uint16) * 256 + low
    alpha = None
    if values.shape[2] in (2, 4):
        alpha = np.floor(values[..., -1] / 257 + 0.5).astype(np.uint8)
        values = values[..., :-1]
    elif key is not None:  # one colour means transparent
        alpha = np.where((values == np.array(key)).all(-1), 0, 255).astype(np.uint8)
    turned = None if alpha is None else upright(alpha, orientation).astype(np.uint8)
    return Frame(upright(values, orientation), turned)


def _unpacked(path: Path, unpacker: str = "") -> tuple[str, npt.NDArray[Any], Any]:
    """Return Pillow's own unpacker for a PNG, its bytes by that or another, its clear colour."""
    with Image.open(path, formats=("PNG",)) as image:
        codec, extents, offset, own = image.tile[0]
        if unpacker:
            image.tile = [ImageFile._Tile(codec, extents, offset, unpacker)]
        return str(own), np.asarray(image), image.info.get("transparency")
