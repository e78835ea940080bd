"""Where prepared images go, one by one, with what has to be known of them all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from fedadb_app.data.arrays import Shape, check_size
from fedadb_app.data.intake.arrays_on_disk import GrowingArray
from fedadb_app.data.intake.duplicates import Duplicates
from fedadb_app.data.intake.frames import Decoded, ImageError
from fedadb_app.data.intake.intensity import Window
from fedadb_app.data.intake.layout import Entry
from fedadb_app.data.intake.names import shown
from fedadb_app.data.intake.options import IntakeOptions
from fedadb_app.data.intake.patients import Patients
from fedadb_app.data.intake.prepare import PreparedImage
from fedadb_app.data.intake.report import IntakeReport, PartReport


class LabelledFile(Protocol):
    """A file that is taken in."""

    @property
    def entry(self) -> Entry:
        """Where it is from."""

    @property
    def label(self) -> int:
        """Index of its class."""

    @property
    def patient(self) -> int:
        """Number of its patient."""


class Output:
    """Appends images to their part, and counts.

    Parameters
    ----------
    parts : Mapping[str, GrowingArray]
        ``train`` and ``test``.
    report : IntakeReport
        What is added to.
    options : IntakeOptions
        The user's decisions.

    Attributes
    ----------
    problems : list[tuple[str, str]]
        Kind and sentence of every file that could not be used.
    """

    def __init__(
        self, parts: Mapping[str, GrowingArray], report: IntakeReport, options: IntakeOptions
    ) -> None:
        self._parts, self._report, self._options = parts, report, options
        self._labels: dict[str, list[int]] = {part: [] for part in parts}
        self._patients: dict[str, list[int]] = {part: [] for part in parts}
        self._sites: list[str | None] = []
        self._duplicates = Duplicates()
        self._first: tuple[Path, Shape] | None = None
        self._deep = 0
        self._several = False
        self.problems: list[tuple[str, str]] = []

    def add(
        self, path: Path, file: LabelledFile, decoded: Decoded, images: list[PreparedImage]
    ) -> None:
        """Append the images of one file; one of another shape than the first is a problem."""
        name, part, report = "/".join(file.entry.file.relative), file.entry.part, self._report
        report.read += 1
        report.kinds[decoded.kind] += 1
        report.modes[decoded.mode] += 1
        report.notes.update(set(decoded.notes))
        self._several |= len(images) > 1
        for image in images:
            report.sizes[image.size] += 1
            self._deep += image.deep
            if not self._fits(path, name, image):
                return
            self._parts[part].append(image.pixels)
            self._labels[part].append(file.label)
            self._patients[part].append(file.patient)
            if part == "train":
                self._sites.append(file.entry.site)
            self._duplicates.add(image.fingerprint, image.blank, file.label, part, shown(name))
            report.images += 1

    def cannot_use(self, path: Path, name: str, error: ImageError) -> None:
        """Note a file that gave no image."""
        self.problems.append((error.kind, f"{shown(path)} {error}"))
        self._report.cannot_use(error.kind, shown(name))

    def _fits(self, path: Path, name: str, image: PreparedImage) -> bool:
        height, width, channels = image.pixels.shape
        shape = (channels, height, width)
        if self._first is None:
            check_size(shown(path), height, width, channels)
            self._first = path, shape
        if shape == self._first[1]:
            return True
        first, expected = self._first
        self.cannot_use(
            path,
            name,
            ImageError(
                "of another shape than the first",
                f"is {shape} (channels, height, width) but {shown(first)} is {expected}: state "
                f"what all are to become, as in "
                f'image-shape="{"x".join(map(str, expected))}", or convert it',
            ),
        )
        return False

    def finish(self, folder: Path, patients: Patients, window: Window | None) -> None:
        """Write what goes beside the images, once their files are closed, and end the report."""
        report = self._report
        self._duplicates.tell(report)
        for part, labels in self._labels.items():
            if not labels:
                (folder / f"{part}_images.npy").unlink()
                continue
            groups = self._patients[part]
            np.save(folder / f"{part}_labels.npy", np.array(labels, np.int64))
            if patients.any_known or self._several:
                np.save(folder / f"{part}_patients.npy", np.array(groups, np.int64))
            counts = np.bincount(labels, minlength=len(report.class_names)).tolist()
            per_class = dict(zip(report.class_names, counts, strict=True))
            number = len(set(groups)) if patients.all_known else None
            report.parts[part] = PartReport(len(labels), per_class, number)
        patients.check_parts(self._patients, report)
        self._write_domains(folder)
        assert self._first is not None
        shape = self._first[1]
        report.say_made(shape, self._options.resize, self._deep, window)
        report.bytes = sum(file.stat().st_size for file in folder.glob("*_images.npy"))

    def _write_domains(self, folder: Path) -> None:
        named = [site for site in self._sites if site is not None]
        if len(named) == len(self._sites):
            sites = sorted(set(named))
            domains = np.array([sites.index(site) for site in named], np.int64)
            np.save(folder / "train_domains.npy", domains)
            self._report.layout.append(f"{len(sites)} sites are the domains")
        elif named:
            missing = len(self._sites) - len(named)
            self._report.warnings.append(f"{missing} training images have no site: no domains")
