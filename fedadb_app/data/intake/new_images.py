"""New images, of which nobody has said a class: a folder, a list of files, an ``.npz`` file."""

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedadb_app.data.intake.archive import opened
from fedadb_app.data.intake.archive_intake import eight_bits
from fedadb_app.data.intake.arrays_on_disk import GrowingArray
from fedadb_app.data.intake.decode import decode, kind_of
from fedadb_app.data.intake.find import IMAGE_SUFFIXES, NO_SUFFIX, LeftOut, find, suffix_of
from fedadb_app.data.intake.frames import Decoded, ImageError
from fedadb_app.data.intake.intensity import Window
from fedadb_app.data.intake.names import shown
from fedadb_app.data.intake.options import IntakeOptions
from fedadb_app.data.intake.prepare import PreparedImage, in_order, prepare
from fedadb_app.data.intake.refusal import SUFFIXES_READ, refuse_unusable
from fedadb_app.data.intake.report import IntakeReport
from fedadb_app.data.intake.resize import shaped
from fedadb_app.errors import DataError

LISTS = frozenset({".csv", ".txt"})
"""What a list of files is called."""


@dataclass(frozen=True)
class NewFile:
    """A file, or an array of an ``.npz`` file.

    Attributes
    ----------
    name : str
        Its path below the folder, as it is listed, or the name of the array.
    images : int
        How many images it gave.
    problem : str
        Why it gave none.
    """

    name: str
    images: int
    problem: str = ""


@dataclass(frozen=True)
class NewImages:
    """Images as a model takes them.

    Attributes
    ----------
    pixels : numpy.ndarray
        uint8, ``(N, channels, height, width)``, memory-mapped.
    files : Sequence[NewFile]
        Where they are from, in the same order, and what gave none.
    report : IntakeReport
        How they came in.
    """

    pixels: npt.NDArray[np.uint8]
    files: Sequence[NewFile]
    report: IntakeReport


def take_in_new_images(
    path: Path, options: IntakeOptions, folder: Path, array: str = ""
) -> NewImages:
    """Prepare new images as those that a run was trained on were prepared.

    Parameters
    ----------
    path : Path
        A folder, at any depth; an image; a list of files, a line each (``.txt``) or in a column
        ``file`` (``.csv``), relative to where the list lies; or an ``.npz`` file.
    options : IntakeOptions
        The run's decisions, with an `image_shape` and no percentiles.
    folder : Path
        An empty one, where the prepared images go.
    array : str
        Of an ``.npz`` file only this array; ``""``: ``images`` and each ``..._images``.

    Raises
    ------
    DataError
        If there is nothing at the path, or nothing in it becomes an image; an `IntakeError`, with
        the report, where files cannot be used.
    """
    assert options.image_shape is not None
    report = IntakeReport(shown(path))
    target = folder / "images.npy"
    with GrowingArray(target) as images:
        suffix = suffix_of(path.name)
        if os.path.isfile(path) and suffix not in LISTS | IMAGE_SUFFIXES:
            files = _from_archive(path, options, array, images, report)
        elif array:
            raise DataError(f'{shown(path)} is no .npz file: it has no array "{shown(array)}"')
        elif os.path.isfile(path):
            named = _listed(path) if suffix in LISTS else iter([(path.name, path, suffix)])
            files = _from_files(named, options, images, report)
        elif os.path.isdir(path):
            files = _from_files(_below(path, options, report), options, images, report)
        else:
            raise DataError(f"{shown(path)}: there is no such file or folder")
    if not images.count:
        refuse_unusable([("", f"{shown(f.name)} {f.problem}") for f in files], report, path)
        raise DataError(f"{shown(path)} holds no image ({SUFFIXES_READ})")
    return NewImages(np.load(target, mmap_mode="c"), files, report)


_Named = tuple[str, Path, str]
"""A file's name in the answer, where it is, and its suffix."""


def _below(root: Path, options: IntakeOptions, report: IntakeReport) -> Iterator[_Named]:
    tree = find(root, options.ignored)
    report.leave_out(tree.left_out, 1)
    report.found = sum(not x.allowed for x in tree.left_out)
    for file in tree.files:
        yield "/".join(file.relative), tree.path(file.relative), file.suffix


def _listed(path: Path) -> Iterator[_Named]:
    """Yield what a list names; the same file twice is a mistake that may stand for another."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{shown(path)} cannot be read as UTF-8 text: {error}") from error
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    if suffix_of(path.name) == ".csv":
        reader = csv.DictReader(text.splitlines())
        if "file" not in (reader.fieldnames or ()):
            raise DataError(f'{shown(path)}, line 1: there is no column "file"')
        lines = [(reader.line_num, (row["file"] or "").strip()) for row in reader]
    seen: dict[str, int] = {}
    for number, name in lines:
        if not name:
            continue
        if name in seen:
            raise DataError(
                f"{shown(path)}, line {number}: {shown(name)} is listed already, in line "
                f"{seen[name]}"
            )
        seen[name] = number
        yield name, path.parent / name, suffix_of(Path(name).name)


def _from_files(
    found: Iterator[_Named], options: IntakeOptions, images: GrowingArray, report: IntakeReport
) -> list[NewFile]:
    scale = options.scale
    window = scale if isinstance(scale, Window) else None

    def work(named: _Named) -> tuple[Decoded, list[PreparedImage]] | None:
        _, path, suffix = named
        try:
            kind = kind_of(path, suffix)
        except OSError as error:
            why = f"cannot be read: {error.strerror}"
            raise ImageError("that cannot be read", why) from error
        if kind is None and suffix == NO_SUFFIX:
            return None
        decoded = decode(path, kind or "", suffix, options)
        return decoded, [prepare(frame, options, window) for frame in decoded.frames]

    files, deep = [], 0
    for (name, _, suffix), result in in_order(work, found):
        report.found += 1
        if result is None:
            report.leave_out((LeftOut(tuple(name.split("/")), suffix, False),), 1)
            continue
        if isinstance(result, ImageError):
            report.cannot_use(result.kind, shown(name))
            files.append(NewFile(name, 0, str(result)))
            continue
        decoded, prepared = result
        report.read += 1
        report.kinds[decoded.kind] += 1
        report.modes[decoded.mode] += 1
        report.notes.update(set(decoded.notes))
        for image in prepared:
            report.sizes[image.size] += 1
            deep += image.deep
            images.append(image.pixels)
        files.append(NewFile(name, len(prepared)))
    return _reported(files, options, images, report, deep, window)


def _from_archive(
    path: Path, options: IntakeOptions, array: str, images: GrowingArray, report: IntakeReport
) -> list[NewFile]:
    assert options.image_shape is not None
    scale = options.scale
    window = scale if isinstance(scale, Window) else None
    files, deep = [], 0
    with opened(path, ()) as archive:
        there = archive.image_arrays()
        if (array and array not in there) or not there:
            raise DataError(
                f"{shown(path)} has no array {shown(array) or 'images'}"
                f"{'; it has ' + ', '.join(map(shown, there)) if there else ''}"
            )
        for name in [array] if array else there:
            before = images.count
            for block in archive.blocks(name):
                pixels = eight_bits(block, f"{shown(path)}: {name}", window)
                deep += len(block) * (block.dtype != np.uint8)
                height, width, channels = pixels.shape[1:]
                report.modes[f"{channels} x {block.dtype}"] += len(pixels)
                report.sizes[f"{height}x{width}"] += len(pixels)
                for image in pixels:
                    images.append(shaped(image, options.image_shape, options.resize))
            files.append(NewFile(name, images.count - before))
    report.found = report.read = 1
    return _reported(files, options, images, report, deep, window)


def _reported(
    files: list[NewFile],
    options: IntakeOptions,
    images: GrowingArray,
    report: IntakeReport,
    deep: int,
    window: Window | None,
) -> list[NewFile]:
    assert options.image_shape is not None
    report.images = images.count
    report.bytes = images.count * int(np.prod(options.image_shape))
    if images.count:
        report.say_made(options.image_shape, options.resize, deep, window)
    return files
