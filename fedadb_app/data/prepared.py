"""The memory-mapped form of a data set that every worker of a machine shares.

Each source is written once, under a lock, as plain ``.npy`` files into the user's cache folder;
afterwards a worker only maps them. Pixels stay uint8, channels first; labels are int64 of shape
``(N,)``.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from fedadb_app.data.arrays import VALIDATION, ImageSchema
from fedadb_app.data.intake.digest import content_digest
from fedadb_app.data.intake.division import held_out_patients
from fedadb_app.data.intake.names import shown
from fedadb_app.data.intake.report import REPORT, IntakeReport
from fedadb_app.errors import DataError
from fedadb_app.runs.atomic import move

FORMAT = 3  # raise when the prepared files change, so that old caches are not read


@dataclass(frozen=True)
class Source:
    """Images as they lie on this machine, and how to prepare them.

    Attributes
    ----------
    label : str
        For the prepared folder's name, and for sentences.
    stamp : str
        Changes with the content, so that a replaced file is prepared anew; see `stamp_of`.
    write : Callable[[Path], list[str]]
        Writes ``{train,test}_{images,labels}.npy``, where there are several
        ``train_domains.npy``, where they are known ``{train,test}_patients.npy``, where the
        last of the training images are an official validation part ``validation.json``, and of a
        user's own images a report, into an empty folder; returns the class names.
    origin : str
        What is prepared, and how: of two copies with one origin, the older one is not used.
    """

    label: str
    stamp: str
    write: Callable[[Path], list[str]]
    origin: str = ""


@dataclass(frozen=True)
class ImageDataset:
    """A labelled image data set with a training and a test part.

    Attributes
    ----------
    name : str
        As the user named it.
    class_names : tuple[str, ...]
        Index = label.
    train_images, test_images : numpy.ndarray
        uint8, ``(N, channels, height, width)``, memory-mapped.
    train_labels, test_labels : numpy.ndarray
        int64, ``(N,)``.
    digest : str
        Of all arrays: the same wherever the same images were prepared.
    train_domains : numpy.ndarray or None
        Which domain each training image comes from, int64 ``(N,)``; None where there is but one.
    train_patients : numpy.ndarray or None
        Whose each training image is, int64 ``(N,)``; None where that is not known.
    test_patients : numpy.ndarray or None
        The same of each test image.
    num_validation : int
        How many of the training images, the last of them, are an official validation part.
    report : IntakeReport or None
        Of a user's own images, how they came in.
    """

    name: str
    class_names: tuple[str, ...]
    train_images: npt.NDArray[np.uint8]
    train_labels: npt.NDArray[np.int64]
    test_images: npt.NDArray[np.uint8]
    test_labels: npt.NDArray[np.int64]
    digest: str
    train_domains: npt.NDArray[np.int64] | None = None
    train_patients: npt.NDArray[np.int64] | None = None
    test_patients: npt.NDArray[np.int64] | None = None
    num_validation: int = 0
    report: IntakeReport | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes, those without a sample included."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        channels, height, width = self.train_images.shape[1:]
        return channels, height, width

    @cached_property
    def held_out_patients(self) -> npt.NDArray[np.bool_] | None:
        """Which training images clients evaluate on, whole patients; None: nobody is known."""
        if self.train_patients is None:
            return None
        return held_out_patients(self.train_labels, self.train_patients)

    @property
    def schema(self) -> ImageSchema:
        """What other data must agree with, to be trained on together with these."""
        return ImageSchema(self.class_names, self.image_shape)


_ARRAYS = (
    *("train_images", "train_labels", "train_domains", "train_patients"),
    *("test_images", "test_labels", "test_patients"),
)


def cache_folder() -> Path:
    """Return the user's cache folder of this app."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fedadb"


def open_source(name: str, source: Source) -> ImageDataset:
    """Map a source's arrays, preparing them first where this machine has not yet.

    Raises
    ------
    DataError
        Damaged or unusable data, or a cache folder that cannot be written. An `IntakeError`,
        with the report, if a user's own images were prepared but hold errors.
    """
    folder = cache_folder() / "prepared" / f"{source.label}-{source.stamp}"
    if not (folder / "meta.json").is_file():
        _prepare(source, folder)
    meta = json.loads((folder / "meta.json").read_text())
    arrays = {
        part: np.load(folder / f"{part}.npy", mmap_mode="c" if "images" in part else None)
        for part in _ARRAYS
        if (folder / f"{part}.npy").is_file()
    }
    for kind in ("images", "labels"):  # a node may have no test part
        arrays.setdefault(f"test_{kind}", arrays[f"train_{kind}"][:0])
    official = folder / VALIDATION
    report = None
    if (folder / REPORT).is_file():
        report = IntakeReport.from_json(json.loads((folder / REPORT).read_text()))
        report.refuse_errors()
    return ImageDataset(
        name=name,
        class_names=tuple(meta["class_names"]),
        digest=meta["digest"],
        num_validation=json.loads(official.read_text()) if official.is_file() else 0,
        report=report,
        **arrays,
    )


def label_of(path: Path) -> str:
    """Return a folder name that resembles a user's file or folder."""
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in path.stem)[:40]


def stamp_of(files: Sequence[Path] = (), facts: object = None) -> str:
    """Return what changes when one of the files does, or one of the facts.

    Raises
    ------
    DataError
        If a file cannot be read.
    """
    digest = hashlib.sha256(f"{FORMAT}|{facts}\n".encode())
    for file in files:
        try:
            status = file.stat()
        except OSError as error:
            raise DataError(f"{shown(file)} cannot be read: {error}") from error
        # Both paths: a link's own says its class, its target's says which pixels.
        facts = f"{file}|{file.resolve()}|{status.st_size}|{status.st_mtime_ns}\n"
        digest.update(os.fsencode(facts))
    return digest.hexdigest()[:16]


def _prepare(source: Source, folder: Path) -> None:
    """Write a source's arrays to `folder`, complete or not at all."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if (folder / "meta.json").is_file():  # another worker was faster
                return
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                ready = Path(scratch) / "ready"
                ready.mkdir(0o700)
                class_names = source.write(ready)
                if len(class_names) < 2:
                    raise DataError(f"{source.label} has one class only; at least two are needed")
                meta = {
                    "class_names": class_names,
                    "digest": content_digest(ready),
                    "origin": source.origin or source.label,
                    "format": FORMAT,
                }
                (ready / "meta.json").write_text(json.dumps(meta))
                move(ready, folder)  # readers, who take no lock, see all of it or nothing
    except OSError as error:
        raise DataError(f"cannot prepare the data in {folder}: {error}") from error
