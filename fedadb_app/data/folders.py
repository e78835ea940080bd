"""Reading a folder of class folders, one image file at a time."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedadb_app.data.arrays import check_parts_agree, check_size, create_array
from fedadb_app.errors import DataError

_IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"})
_HELD_OUT_EVERY = (
    5  # a folder without train/test parts: every fifth image of a class is a test image
)


def image_files(folder: Path) -> list[Path]:
    """Return all image files below a folder, sorted."""
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in _IMAGE_SUFFIXES)


def write_folder(root: Path, folder: Path) -> list[str]:
    """Read ``root/<class>/*`` or ``root/train/<class>/*`` and ``root/test/<class>/*``."""
    parts = {p: root / p for p in ("train", "test") if (root / p).is_dir()}
    if len(parts) == 1:
        raise DataError(f"{root} has a folder {next(iter(parts))} but not both train and test")
    names = _class_names(parts["train"] if parts else root)
    files: dict[str, list[tuple[Path, int]]] = {"train": [], "test": []}
    if parts:
        for part, top in parts.items():
            if unknown := sorted(set(_class_names(top)) - set(names)):
                raise DataError(f"{top / unknown[0]} is a class that {parts['train']} lacks")
            for label, name in enumerate(names):
                files[part] += [(f, label) for f in _class_files(top / name, part == "train")]
    else:
        for label, name in enumerate(names):
            found = _class_files(root / name, True)
            if len(found) < 2:
                raise DataError(f"class folder {root / name} needs two images: one is held out")
            held_out = set(found[_HELD_OUT_EVERY - 1 :: _HELD_OUT_EVERY] or found[-1:])
            for file in found:
                files["test" if file in held_out else "train"].append((file, label))
    for part, labelled in files.items():
        if not labelled:
            raise DataError(f"{root} gives no {part} image")
        _write_images(labelled, folder / f"{part}_images.npy")
        np.save(folder / f"{part}_labels.npy", np.array([y for _, y in labelled], np.int64))
    check_parts_agree(folder, root)
    return names


def _class_names(top: Path) -> list[str]:
    names = sorted(p.name for p in top.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not names:
        raise DataError(f"{top} holds no class folder")
    return names


def _class_files(folder: Path, needed: bool) -> list[Path]:
    files = image_files(folder) if folder.is_dir() else []
    if needed and not files:
        raise DataError(
            f"class folder {folder} holds no image ({', '.join(sorted(_IMAGE_SUFFIXES))})"
        )
    return files


def _write_images(labelled: list[tuple[Path, int]], target: Path) -> None:
    output: Any = None
    first = labelled[0][0]
    for position, (file, _) in enumerate(labelled):
        pixels = _read_image(file)
        if output is None:
            check_size(file, pixels.shape[1], pixels.shape[2], pixels.shape[0])
            output = create_array(target, (len(labelled), *pixels.shape))
        if pixels.shape != output.shape[1:]:
            raise DataError(
                f"{file} is {pixels.shape} (channels, height, width) but {first} is "
                f"{output.shape[1:]}; all images of a data set must agree"
            )
        output[position] = pixels
    output.flush()


def _read_image(file: Path) -> npt.NDArray[np.uint8]:
    """Read one image as uint8, ``(1 or 3, height, width)``."""
    try:
        with Image.open(file) as image:
            mode = image.mode
            pixels = np.asarray(image.convert("L" if mode in {"1", "L", "LA"} else "RGB"))
    except Exception as error:  # a decoder raises whatever a damaged file makes it raise
        raise DataError(f"{file} cannot be read as an image: {error}") from error
    if mode[0] in "IF":  # Pillow would cut brighter values off at 255
        raise DataError(
            f"{file} has more than 8 bits a channel (Pillow mode {mode}); save it with 8"
        )
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
