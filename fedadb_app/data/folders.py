"""Reading the official folders of image files, CINIC-10's and PACS's, one file at a time."""

import os
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedadb_app.data.arrays import create_array, held_out
from fedadb_app.errors import DataError

_IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"})
_SUFFIXES = ", ".join(sorted(_IMAGE_SUFFIXES))

Labelled = list[tuple[Path, int]]
"""Image files with their labels."""


def image_files(folder: Path) -> list[Path]:
    """Return all image files below a folder, sorted; what may not be listed is an error."""
    found: list[Path] = []
    for place, _, names in os.walk(folder, onerror=_refuse):
        found += [Path(place, n) for n in names if Path(n).suffix.lower() in _IMAGE_SUFFIXES]
    return sorted(found)


def _refuse(error: OSError) -> NoReturn:
    raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error


def write_folder(root: Path, folder: Path, side: int) -> list[str]:
    """Read ``root/train/<class>/*`` and ``root/test/<class>/*`` as RGB, ``side x side`` pixels."""
    if missing := [p for p in ("train", "test") if not (root / p).is_dir()]:
        raise DataError(f"{root} has no folder {missing[0]}")
    names = _class_names(root / "train")
    for part in ("train", "test"):
        if unknown := sorted(set(_class_names(root / part)) - set(names)):
            raise DataError(f"{root / part / unknown[0]} is a class that {root / 'train'} lacks")
        labelled = [
            (file, label)
            for label, name in enumerate(names)
            for file in _class_files(root / part / name)
        ]
        _write_part(labelled, folder, part, side)
    return names


def write_domains(root: Path, folder: Path, side: int) -> list[str]:
    """Read ``root/<domain>/<class>/*`` as RGB images of ``side x side`` pixels.

    `held_out` says, for each class of each domain, which images are the test part's.
    """
    files: dict[str, Labelled] = {"train": [], "test": []}
    domains: list[int] = []
    tops = [root / name for name in _class_names(root)]
    names = _class_names(tops[0])
    for domain, top in enumerate(tops):
        if _class_names(top) != names:
            raise DataError(
                f"{top} has the class folders {', '.join(_class_names(top))}, but {tops[0]} "
                f"{', '.join(names)}: every domain needs the same"
            )
        for part, labelled in _divided(top, names).items():
            files[part] += labelled
        domains += [domain] * (len(files["train"]) - len(domains))
    for part, labelled in files.items():
        _write_part(labelled, folder, part, side)
    np.save(folder / "train_domains.npy", np.array(domains, np.int64))
    return names


def _divided(top: Path, names: list[str]) -> dict[str, Labelled]:
    """Divide the images of ``top/<class>/*`` into those to train on and those held out."""
    files: dict[str, Labelled] = {"train": [], "test": []}
    for label, name in enumerate(names):
        found = _class_files(top / name)
        if len(found) < 2:
            raise DataError(f"class folder {top / name} needs two images: one is held out")
        for file, kept in zip(found, held_out(np.full(len(found), label)), strict=True):
            files["test" if kept else "train"].append((file, label))
    return files


def _class_names(top: Path) -> list[str]:
    names = sorted(p.name for p in top.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not names:
        raise DataError(f"{top} holds no class folder")
    return names


def _class_files(folder: Path) -> list[Path]:
    files = image_files(folder) if folder.is_dir() else []
    if not files:
        raise DataError(f"class folder {folder} holds no image ({_SUFFIXES})")
    return files


def _write_part(labelled: Labelled, folder: Path, part: str, side: int) -> None:
    """Write images and labels."""
    output = create_array(folder / f"{part}_images.npy", (len(labelled), 3, side, side))
    for position, (file, _) in enumerate(labelled):
        output[position] = _read_image(file, side)
    output.flush()
    np.save(folder / f"{part}_labels.npy", np.array([y for _, y in labelled], np.int64))


def _read_image(file: Path, side: int) -> npt.NDArray[np.uint8]:
    """Read one image as uint8, ``(3, side, side)``."""
    try:
        with Image.open(file) as image:
            mode = image.mode
            resized = image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
            pixels = np.asarray(resized)
    except Exception as error:  # a decoder raises whatever a damaged file makes it raise
        raise DataError(f"{file} cannot be read as an image: {error}") from error
    if mode[0] in "IF":  # Pillow would cut brighter values off at 255
        raise DataError(
            f"{file} has more than 8 bits a channel (Pillow mode {mode}); save it with 8"
        )
    return pixels.transpose(2, 0, 1)
