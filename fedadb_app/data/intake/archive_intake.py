"""An ``.npz`` file's way in, through the same steps as a folder's images."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedadb_app.data.arrays import VALIDATION, Shape, check_size
from fedadb_app.data.intake.archive import Archive, DamagedArchiveError, Labels, numbered, opened
from fedadb_app.data.intake.arrays_on_disk import GrowingArray
from fedadb_app.data.intake.duplicates import Duplicates, fingerprint
from fedadb_app.data.intake.intensity import Percentiles, Window
from fedadb_app.data.intake.names import shown
from fedadb_app.data.intake.options import IntakeOptions
from fedadb_app.data.intake.report import REPORT, IntakeReport, PartReport
from fedadb_app.data.intake.resize import shaped
from fedadb_app.errors import DataError

_PARTS = {"train": ("train", "val"), "test": ("test",)}
"""Part -> members of the archive; validation images come last, and are trained on unless a run
says otherwise, as in the lineage (FedSOL)."""


def write_archive(path: Path, class_names: Sequence[str], folder: Path) -> list[str]:
    """Turn an official archive into plain arrays, as it is.

    Raises
    ------
    DataError
        If it is damaged, with what to do, or does not hold what it should.
    """
    try:
        _Intake(path, IntakeOptions(), class_names, ("train", "test")).write(folder)
    except DamagedArchiveError as error:
        raise DataError(f"{error}; remove it and run: fedadb data {path.stem}") from error
    return list(class_names)


def take_in_archive(path: Path, options: IntakeOptions, folder: Path) -> IntakeReport:
    """Turn somebody's own archive into plain arrays, and report on it.

    Parameters
    ----------
    path : Path
        The file.
    options : IntakeOptions
        The user's decisions. With `class_names` it is a node's, which need not have a test part.
    folder : Path
        Where ``{train,test}_{images,labels}.npy`` and the report go.

    Raises
    ------
    DataError
        If the file is damaged, is not in MedMNIST layout, or holds what the options refuse.
    """
    needed = ("train",) if options.class_names is not None else ("train", "test")
    intake = _Intake(path, options, options.class_names, needed)
    intake.report = IntakeReport(shown(path), found=1, read=1)
    intake.write(folder)
    report = intake.report
    intake.duplicates.tell(report)
    report.patients = (
        "not known: images of one patient may be trained on and evaluated on (a folder with a "
        "label list can say whose they are)"
    )
    empty = [name for name, count in report.parts["train"].per_class.items() if not count]
    if empty and options.class_names is None:
        report.warnings.append(
            f"class {shown(empty[0])} has no training image (labels count from 0): a model learns "
            f"{len(report.class_names)} classes"
        )
    report.bytes = sum(file.stat().st_size for file in folder.glob("*_images.npy"))
    (folder / REPORT).write_text(json.dumps(report.to_json()))
    return report


class _Intake:
    def __init__(
        self,
        path: Path,
        options: IntakeOptions,
        class_names: Sequence[str] | None,
        needed: Sequence[str],
    ) -> None:
        self._path, self._options, self._needed = path, options, needed
        self._class_names = class_names
        self._shape: Shape | None = options.image_shape
        self._first = "the federation's images"
        self._deep = 0
        self.report: IntakeReport | None = None
        self.duplicates = Duplicates()

    def write(self, folder: Path) -> None:
        with opened(self._path, self._needed) as archive:
            present = [m for members in _PARTS.values() for m in members if archive.has(m)]
            labels, names = numbered(
                self._path, {m: archive.labels(m) for m in present}, self._class_names
            )
            window = self._window(archive, labels)
            for part, members in _PARTS.items():
                members = tuple(m for m in members if m in labels)
                if not members:
                    continue
                with ExitStack() as stack:
                    array = stack.enter_context(GrowingArray(folder / f"{part}_images.npy"))
                    for member in members:
                        self._copy(archive, member, part, labels[member], window, array)
                if "val" in members:
                    (folder / VALIDATION).write_text(json.dumps(len(labels["val"])))
                joined = np.concatenate([labels[m] for m in members])
                np.save(folder / f"{part}_labels.npy", joined)
                if self.report is not None:
                    counts = np.bincount(joined, minlength=len(names)).tolist()
                    per_class = dict(zip(names, counts, strict=True))
                    self.report.parts[part] = PartReport(len(joined), per_class)
        if self.report is not None and self._shape is not None:
            self.report.class_names = names
            self.report.say_made(self._shape, self._options.resize, self._deep, window)

    def _window(self, archive: Archive, labels: dict[str, Labels]) -> Window | None:
        scale = self._options.scale
        if not isinstance(scale, Percentiles):
            return scale
        members = [m for m in _PARTS["train"] if m in labels]
        images = (
            image
            for member in members
            for block in archive.slices(member, len(labels[member]))
            if block.dtype != np.uint8
            for image in block
        )
        return scale.window(images)

    def _copy(
        self,
        archive: Archive,
        member: str,
        part: str,
        labels: Labels,
        window: Window | None,
        array: GrowingArray,
    ) -> None:
        position = 0
        for block in archive.slices(member, len(labels)):
            pixels = eight_bits(block, f"{shown(self._path)}: {member}_images", window)
            self._deep += len(block) * (block.dtype != np.uint8)
            self._check(pixels, member)
            for image in pixels:
                self._note(image, int(labels[position]), part, f"{member}_images[{position}]")
                array.append(self._shaped(image))
                position += 1
            if self.report is not None:
                height, width, channels = pixels.shape[1:]
                self.report.kinds["npz"] += len(pixels)
                self.report.modes[f"{channels} x {block.dtype}"] += len(pixels)
                self.report.sizes[f"{height}x{width}"] += len(pixels)
                self.report.images += len(pixels)

    def _check(self, pixels: npt.NDArray[np.uint8], member: str) -> None:
        height, width, channels = pixels.shape[1:]
        found = (channels, height, width)
        if self._shape is None:
            check_size(shown(self._path), height, width, channels)
            self._shape, self._first = found, f"{member}_images"
        if self._options.image_shape is None and found != self._shape:
            raise DataError(
                f"{shown(self._path)}: {member}_images are {found} (channels, height, width) but "
                f"{self._first} {self._shape}"
            )

    def _shaped(self, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        assert self._shape is not None
        return shaped(image, self._shape, self._options.resize)

    def _note(self, image: npt.NDArray[np.uint8], label: int, part: str, name: str) -> None:
        if self.report is not None:
            self.duplicates.add(*fingerprint(image), label, part, name)


def eight_bits(
    block: npt.NDArray[np.generic], where: str, window: Window | None
) -> npt.NDArray[np.uint8]:
    """Return images of an array as uint8; of another type they are scaled by the window.

    Raises
    ------
    DataError
        If there is none, or a value is no number.
    """
    if block.dtype == np.uint8:
        return block.astype(np.uint8, copy=False)
    if block.dtype.kind == "f" and not np.isfinite(block.astype(np.float64)).all():
        raise DataError(f"{where} hold values that are no numbers")
    if window is None:
        low, high = float(block.min()), float(block.max())
        raise DataError(
            f"{where} are {block.dtype} ({low:g} to {high:g} in the first slice), not uint8: "
            f"say which values become black and white, as in "
            f'intensity="0,{1 if high <= 1 else 255}"'
        )
    return window.to_8_bits(block)
