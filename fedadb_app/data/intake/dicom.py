"""DICOM, with pydicom: pixels as a viewer shows them, and whose they are."""

import contextlib
import hashlib
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pydicom
from pydicom.pixels.processing import apply_color_lut, apply_modality_lut, apply_voi
from pydicom.pixels.utils import pixel_array

from fedadb_app.data.intake.frames import (
    Decoded,
    Frame,
    ImageError,
    check_frames,
    check_pixels,
)
from fedadb_app.data.intake.intensity import eight_bits
from fedadb_app.data.intake.options import IntakeOptions

# What pydicom finds odd in a file it says of each; what cannot be used, we say once.
warnings.filterwarnings("ignore", module=r"pydicom\b")
logging.getLogger("pydicom").setLevel(logging.CRITICAL)

_PIXELS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")


def patient_of(path: Path, salt: bytes) -> str | None:
    """Return whose image a file holds: a digest of its PatientID with the node's own salt.

    None where it has none, or cannot be read (decoding it will say why).
    """
    try:
        header = pydicom.dcmread(
            path, force=True, stop_before_pixels=True, specific_tags=["PatientID"]
        )
        identity = str(header.get("PatientID") or "").strip()
    except Exception:  # a damaged file raises anything
        return None
    if not identity:
        return None
    return hashlib.sha256(salt + identity.encode(errors="surrogateescape")).hexdigest()


def node_salt(folder: Path) -> bytes:
    """Return this machine's salt, made once, so that nobody can guess a patient from a digest."""
    file = folder / "patient-salt"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        made = folder / f"patient-salt.{os.getpid()}"
        made.touch(0o600)
        made.write_bytes(os.urandom(32))
        with contextlib.suppress(FileExistsError):  # another process was faster: its salt stays
            os.link(made, file)
        made.unlink()
    return file.read_bytes()


def decode_dicom(path: Path, options: IntakeOptions) -> Decoded:
    """Decode a file's images: rescaled, windowed where the file says how, MONOCHROME1 inverted.

    Without `options.intensity` the file's own window (the first of several) or look-up table
    makes 8 bits of its values; with it, the rescaled values (Hounsfield units of a CT) are
    handed on.

    Raises
    ------
    ImageError
        Without an image, with a name burned into it, for several frames that are not to be
        taken one by one.
    """
    data = pydicom.dcmread(path, force=True)
    if not any(name in data for name in _PIXELS):
        what = data.get("Modality") or data.file_meta.get("MediaStorageSOPClassUID") or "unknown"
        raise ImageError(
            "DICOM without an image",
            f"is DICOM without an image ({getattr(what, 'name', what)}): leave it out with ignore",
        )
    if str(data.get("BurnedInAnnotation", "")).strip().upper() == "YES":
        raise ImageError(
            "with burned-in annotation",
            "says that text, perhaps a name, is burned into its image (BurnedInAnnotation is YES): "
            "blank it and set the tag to NO, or leave the file out with ignore",
        )
    count = int(data.get("NumberOfFrames") or 1)
    check_frames(count, options.frames)
    check_pixels(int(data.Rows), int(data.Columns), count)
    if not getattr(data, "file_meta", None) or "TransferSyntaxUID" not in data.file_meta:
        data.file_meta = pydicom.dataset.FileMetaDataset()
        data.file_meta.TransferSyntaxUID = pydicom.uid.ImplicitVRLittleEndian
    stored = _pixels(data)
    samples = int(data.get("SamplesPerPixel", 1))
    colour = str(data.get("PhotometricInterpretation", "MONOCHROME2")).strip()
    bits = int(data.get("BitsStored") or data.get("BitsAllocated") or 0)
    notes = _notes(data)
    stack = stored if count > 1 else stored[None]
    if colour.startswith("MONOCHROME") and samples == 1:
        values, note = _grey(stack, data, bits, options)
        notes += note
        inverted = colour == "MONOCHROME1"
        frames = tuple(Frame(v[..., None], inverted=inverted) for v in values)
        notes += ["MONOCHROME1 inverted"] * inverted
    else:
        frames = tuple(Frame(_colour(v, data, colour, samples, bits)) for v in stack)
    return Decoded("DICOM", f"{colour}, {bits} bits", frames, tuple(notes))


def _pixels(data: pydicom.Dataset) -> npt.NDArray[Any]:
    try:
        return pixel_array(data)
    except (RuntimeError, NotImplementedError) as error:
        syntax = data.file_meta.TransferSyntaxUID
        if not syntax.is_compressed:
            raise
        said = " ".join(str(error).split())
        advice = "decompress it, as with dcmdjpeg"
        if "missing" in said:
            advice = 'pip install "fedadb-app[dicom]" reads most'
        raise ImageError(
            "with a compression that is not read",
            f"is compressed as {syntax.name}, which is not read here ({advice}): {said[:200]}",
        ) from error


def _grey(
    stack: npt.NDArray[Any], data: pydicom.Dataset, bits: int, options: IntakeOptions
) -> tuple[npt.NDArray[Any], list[str]]:
    """Return grey values, uint8 where the file says what is black and white."""
    values = apply_modality_lut(stack, data)
    if not options.intensity:
        shown = _windowed(values, data)
        if shown is not None:
            return shown, ["windowed as the file says"]
    if values.dtype.kind == "u" and bits == 8 and values.max(initial=0) <= 255:
        return values.astype(np.uint8), []
    if values.dtype.kind == "u" and bits < 8:
        return np.floor(values * (255 / (2**bits - 1)) + 0.5).clip(0, 255).astype(np.uint8), []
    return values, []


def _windowed(values: npt.NDArray[Any], data: pydicom.Dataset) -> npt.NDArray[np.uint8] | None:
    """Apply the file's look-up table or window (DICOM PS3.3, C.11.2); None where it has none."""
    if data.get("VOILUTSequence"):
        table = data.VOILUTSequence[0]
        depth = int(table.LUTDescriptor[2])
        share = apply_voi(values, data) / (2**depth - 1)
        return eight_bits(share)
    centre, width = (_first(data.get(name)) for name in ("WindowCenter", "WindowWidth"))
    if centre is None or width is None or width <= 0:
        return None
    function = str(data.get("VOILUTFunction") or "LINEAR").strip().upper()
    x = values.astype(np.float64)
    if function == "SIGMOID":
        share = 1 / (1 + np.exp(np.clip(-4 * (x - centre) / width, -700, 700)))
    elif function == "LINEAR_EXACT":
        share = (x - centre) / width + 0.5
    elif width > 1:
        share = (x - (centre - 0.5)) / (width - 1) + 0.5
    else:
        share = (x > centre - 0.5).astype(np.float64)
    return eight_bits(share)


def _first(value: Any) -> float | None:  # noqa: ANN401
    """Return a number, the first of several, or None."""
    if value is None or value == "":
        return None
    if isinstance(value, pydicom.multival.MultiValue | list | tuple):
        return _first(value[0]) if len(value) else None
    return float(value)


def _colour(
    pixels: npt.NDArray[Any], data: pydicom.Dataset, colour: str, samples: int, bits: int
) -> npt.NDArray[np.generic]:
    """Return RGB pixels, ``(height, width, 3)``."""
    if colour == "PALETTE COLOR" and samples == 1:
        mapped = apply_color_lut(pixels, data)
        full = 255 if mapped.dtype == np.uint8 else 65535
        return np.floor(mapped[..., :3] * (255 / full) + 0.5).astype(np.uint8)
    if samples != 3 or colour not in {"RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT"}:
        raise ImageError(
            f"of the colours {colour}",
            f"has {samples} samples per pixel of the kind {colour}; MONOCHROME1, MONOCHROME2, "
            f"PALETTE COLOR, RGB and YBR are read",
        )
    return pixels.astype(np.uint8) if bits == 8 and pixels.dtype == np.uint8 else pixels


def _notes(data: pydicom.Dataset) -> list[str]:
    aspect = data.get("PixelAspectRatio") or data.get("PixelSpacing")
    try:
        square = not aspect or float(aspect[0]) == float(aspect[1])
    except (IndexError, TypeError, ValueError):
        square = True
    return [] if square else ["pixels are not square, shown as if they were"]
