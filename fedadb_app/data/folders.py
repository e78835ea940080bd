"""Reading a folder of class folders, one image file at a time."""

import os
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedadb_app.data.arrays import (
    ImageSchema,
    Shape,
    check_parts_agree,
    check_size,
    create_array,
    held_out,
)
from fedadb_app.errors import DataError

_IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"})
_SUFFIXES = ", ".join(sorted(_IMAGE_SUFFIXES))

Labelled = list[tuple[Path, int]]
"""Image files with their labels."""


def image_files(folder: Path) -> list[Path]:
    """Return all image files below a folder, sorted; what may not be listed is an error."""
    found: list[Path] = []
    seen: set[Path] = set()
    for place, _, names in os.walk(folder, onerror=_refuse, followlinks=True):
        if (real := Path(place).resolve()) in seen:
            raise DataError(f"{place} is a link to {real}, whose images are here already")
        seen.add(real)
        found += [Path(place, n) for n in names if Path(n).suffix.lower() in _IMAGE_SUFFIXES]
    return sorted(found)


def _refuse(error: OSError) -> NoReturn:
    raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error


def write_folder(root: Path, folder: Path, side: int | None = None) -> list[str]:
    """Read ``root/<class>/*`` or ``root/train/<class>/*`` and ``root/test/<class>/*``.

    Without train and test parts, `held_out` says which images are the test part's. With `side`,
    images are made RGB of that size.
    """
    parts = {p: root / p for p in ("train", "test") if (root / p).is_dir()}
    if len(parts) == 1:
        raise DataError(f"{root} has a folder {next(iter(parts))} but not both train and test")
    names = _class_names(parts["train"] if parts else root)
    if parts:
        files: dict[str, Labelled] = {"train": [], "test": []}
        for part, top in parts.items():
            if unknown := sorted(set(_class_names(top)) - set(names)):
                raise DataError(f"{top / unknown[0]} is a class that {parts['train']} lacks")
            for label, name in enumerate(names):
                files[part] += [(f, label) for f in _class_files(top / name, part == "train")]
    else:
        files = _divided(root, names)
    for part, labelled in files.items():
        if not labelled:
            raise DataError(f"{root} gives no {part} image")
        _write_part(labelled, folder, part, side=side)
    check_parts_agree(folder, root)
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
        _write_part(labelled, folder, part, side=side)
    np.save(folder / "train_domains.npy", np.array(domains, np.int64))
    return names


def _divided(top: Path, names: list[str]) -> dict[str, Labelled]:
    """Divide the images of ``top/<class>/*`` into those to train on and those held out."""
    files: dict[str, Labelled] = {"train": [], "test": []}
    for label, name in enumerate(names):
        found = _class_files(top / name, True)
        if len(found) < 2:
            raise DataError(f"class folder {top / name} needs two images: one is held out")
        for file, kept in zip(found, held_out(np.full(len(found), label)), strict=True):
            files["test" if kept else "train"].append((file, label))
    return files


def write_node_folder(path: Path, schema: ImageSchema, folder: Path) -> list[str]:
    """Read a node's own ``path/<class>/*``, or ``path/train/<class>/*`` with ``path/test``.

    Labels follow the federation's class names, whichever of them have a folder here.
    """
    parts = {p: path / p for p in ("train", "test") if (path / p).is_dir()} or {"train": path}
    if "train" not in parts:
        raise DataError(f"{path} has a folder test but no folder train")
    for part, top in parts.items():
        if unknown := sorted(set(_class_names(top)) - set(schema.class_names)):
            raise DataError(
                f"{top / unknown[0]} is none of the federation's classes "
                f"({', '.join(schema.class_names)}); rename or remove it"
            )
        labelled = [
            (file, label)
            for label, name in enumerate(schema.class_names)
            for file in _class_files(top / name, False)
        ]
        if not labelled:
            raise DataError(f"{top} holds no image ({_SUFFIXES})")
        _write_part(labelled, folder, part, schema.image_shape)
    return list(schema.class_names)


def _class_names(top: Path) -> list[str]:
    names = sorted(p.name for p in top.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not names:
        raise DataError(f"{top} holds no class folder")
    return names


def _class_files(folder: Path, needed: bool) -> list[Path]:
    files = image_files(folder) if folder.is_dir() else []
    if needed and not files:
        raise DataError(f"class folder {folder} holds no image ({_SUFFIXES})")
    return files


def _write_part(
    labelled: Labelled,
    folder: Path,
    part: str,
    federation: Shape | None = None,
    side: int | None = None,
) -> None:
    """Write images and labels; the images have the federation's shape, or the first one's.

    With `side`, all are made RGB of that size.
    """
    output: Any = None
    expected = federation
    reference = "the federation's images are" if federation else f"{labelled[0][0]} is"
    for position, (file, _) in enumerate(labelled):
        pixels = _read_image(file, side)
        if expected is None:
            check_size(file, pixels.shape[1], pixels.shape[2], pixels.shape[0])
            expected = pixels.shape
        if pixels.shape != expected:
            raise DataError(
                f"{file} is {pixels.shape} (channels, height, width) but {reference} {expected}; "
                f"all images must agree: convert or remove it"
            )
        if output is None:
            output = create_array(folder / f"{part}_images.npy", (len(labelled), *expected))
        output[position] = pixels
    output.flush()
    np.save(folder / f"{part}_labels.npy", np.array([y for _, y in labelled], np.int64))


def _read_image(file: Path, side: int | None = None) -> npt.NDArray[np.uint8]:
    """Read one image as uint8, ``(1 or 3, height, width)``; with `side`, ``(3, side, side)``."""
    try:
        with Image.open(file) as image:
            mode = image.mode
            grey = mode in {"1", "L", "LA"} and side is None
            converted = image.convert("L" if grey else "RGB")
            if side is not None:
                converted = converted.resize((side, side), Image.Resampling.BILINEAR)
            pixels = np.asarray(converted)
    except Exception as error:  # a decoder raises whatever a damaged file makes it raise
        raise DataError(f"{file} cannot be read as an image: {error}") from error
    if mode[0] in "IF":  # Pillow would cut brighter values off at 255
        raise DataError(
            f"{file} has more than 8 bits a channel (Pillow mode {mode}); save it with 8"
        )
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
