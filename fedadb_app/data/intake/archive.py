"""The way in of an ``.npz`` file in MedMNIST layout, a slice at a time."""

import tokenize
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from fedadb_app.data.arrays import MOST_CLASSES, check_size
from fedadb_app.data.intake.names import shown
from fedadb_app.errors import DataError

Labels = npt.NDArray[np.int64]

_DAMAGE = (  # what zipfile and NumPy raise for an archive that is cut off or altered
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,
    EOFError,
    KeyError,
    RuntimeError,
    ValueError,
)
_ROWS = 1024
_CHANNELS = (1, 3)


class Archive:
    """An open file in MedMNIST layout; arrays are read when asked for, images in slices.

    Parameters
    ----------
    path : Path
        The file, for sentences.
    file : zipfile.ZipFile
        The open archive.
    """

    def __init__(self, path: Path, file: zipfile.ZipFile) -> None:
        self.path, self._file = path, file
        self._names = set(file.namelist())

    def has(self, part: str) -> bool:
        """Say whether there are images of a part; an empty optional part is none."""
        name = f"{part}_images"
        if f"{name}.npy" not in self._names:
            return False
        with self._array(name) as (_, shape, _, _):
            return part == "train" or len(shape) == 0 or shape[0] > 0

    def labels(self, part: str) -> npt.NDArray[Any]:
        """Return a part's labels, ``(N,)``: int64, or text.

        Raises
        ------
        DataError
            If there are none, or they are no class numbers, names or one-hot rows.
        """
        name = f"{part}_labels"
        if f"{name}.npy" not in self._names:
            raise DataError(f"{shown(self.path)} has no array {name}")
        with self._array(name) as (_, _, dtype, _):
            if dtype.hasobject:
                raise DataError(
                    f"{shown(self.path)}: {name} holds Python objects (as pandas makes them), "
                    f"which are not unpacked: save it with .astype(str), or as whole numbers"
                )
        with self._file.open(f"{name}.npy") as file:
            labels: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if labels.ndim == 1 and labels.dtype.kind in "US" and len(labels):
            if labels.dtype.kind == "S":
                labels = np.char.decode(labels, "utf-8")
            named: npt.NDArray[Any] = np.array(
                [unicodedata.normalize("NFC", str(text).strip()) for text in labels]
            )
            return named
        if labels.ndim == 2 and _one_hot(labels):
            winners: npt.NDArray[Any] = labels.argmax(1).astype(np.int64)
            return winners
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) == 0:
            raise DataError(
                f"{shown(self.path)}: {name} must be class numbers, class names or one-hot rows of "
                f"shape (N,), (N, 1) or (N, classes), N > 0, got {labels.dtype} of shape "
                f"{labels.shape}"
            )
        if labels.min() < 0 or labels.max() > np.iinfo(np.int64).max:
            odd = labels.min() if labels.min() < 0 else labels.max()
            raise DataError(f"{shown(self.path)}: {name} holds the label {odd}; they count from 0")
        return labels.astype(np.int64)

    def image_arrays(self) -> list[str]:
        """Return the names of the arrays that hold images, by their names alone."""
        names = sorted(n.removesuffix(".npy") for n in self._names if n.endswith(".npy"))
        return [name for name in names if name == "images" or name.endswith("_images")]

    def slices(self, part: str, labels: int) -> Iterator[npt.NDArray[np.generic]]:
        """Yield a part's images, of as many labels; else as `blocks`."""
        yield from self.blocks(f"{part}_images", labels, f"{part}_labels")

    def blocks(
        self, name: str, labels: int | None = None, of: str = ""
    ) -> Iterator[npt.NDArray[np.generic]]:
        """Yield the images of an array, ``(n, height, width, 1 or 3)``, of whatever number type.

        Raises
        ------
        DataError
            If they are no images, or not as many as the labels that the array `of` has.
        """
        where = f"{shown(self.path)}: {name}"
        with self._array(name) as (file, shape, dtype, fortran_order):
            if dtype.kind not in "biuf" or fortran_order or len(shape) not in (3, 4):
                raise DataError(
                    f"{where} must be numbers of shape (N, height, width) or "
                    f"(N, height, width, 3), in C order, got {dtype} of shape {shape}"
                    f"{', in Fortran order' if fortran_order else ''}"
                )
            if labels is not None and shape[0] != labels:
                raise DataError(f"{shown(self.path)}: {shape[0]} {name} but {labels} {of}")
            first = len(shape) == 4 and shape[3] not in _CHANNELS and shape[1] in _CHANNELS
            last = len(shape) == 4 and not first
            if last and shape[3] not in _CHANNELS:
                raise DataError(
                    f"{where}: images have {shape[3]} channels; 1 (grey) or 3 (RGB) are allowed"
                )
            row_bytes = int(np.prod(shape[1:])) * dtype.itemsize
            for start in range(0, shape[0], _ROWS):
                count = min(_ROWS, shape[0] - start)
                # A cut-off member ends early here: reshape raises, and `opened` says "damaged".
                block = np.frombuffer(file.read(count * row_bytes), dtype)
                block = block.reshape(count, *shape[1:])
                if len(shape) == 3:
                    block = block[..., None]
                yield block.transpose(0, 2, 3, 1) if first else block

    @contextmanager
    def _array(self, name: str) -> Iterator[tuple[IO[bytes], tuple[int, ...], np.dtype[Any], bool]]:
        """Open an array behind its header: file, shape, type, whether in Fortran order."""
        with self._file.open(f"{name}.npy") as file:
            major, _ = np.lib.format.read_magic(file)
            read_header = (
                np.lib.format.read_array_header_1_0
                if major == 1
                else np.lib.format.read_array_header_2_0
            )
            shape, fortran_order, dtype = read_header(file)
            yield file, shape, dtype, fortran_order


class DamagedArchiveError(DataError):
    """A file that is cut off, altered or none of the kind."""


def _one_hot(labels: npt.NDArray[Any]) -> bool:
    """Say whether each row is all zeros but for a single one."""
    return (
        labels.shape[1] > 1
        and labels.dtype.kind in "biuf"
        and len(labels) > 0
        and bool(np.isin(labels, (0, 1)).all() and (labels.sum(1) == 1).all())
    )


@contextmanager
def opened(path: Path, needed: Sequence[str]) -> Iterator[Archive]:
    """Open an archive that has these parts.

    Raises
    ------
    DataError
        If it has not; and, while it is open, for what is damaged in it.
    """
    try:
        with zipfile.ZipFile(path) as file:
            archive = Archive(path, file)
            missing = [p for p in needed if not archive.has(p)]
            if missing:
                raise DataError(
                    f"{shown(path)} has no array {missing[0]}_images, or an empty one; a file in "
                    f"MedMNIST layout has train_images, train_labels, test_images, test_labels "
                    f"(val_* are optional)"
                )
            yield archive
    except _DAMAGE as error:
        raise DamagedArchiveError(f"{shown(path)} is damaged or no .npz file: {error}") from error


def numbered(
    path: Path, labels: dict[str, npt.NDArray[Any]], class_names: Sequence[str] | None
) -> tuple[dict[str, Labels], list[str]]:
    """Return the labels of all parts as numbers, and the class names.

    Raises
    ------
    DataError
        If a label is none of the classes, or some are numbers and others names.
    """
    texts = {part for part, values in labels.items() if values.dtype.kind == "U"}
    if texts and texts != set(labels):
        raise DataError(
            f"{shown(path)}: {sorted(texts)[0]}_labels are names, "
            f"{sorted(set(labels) - texts)[0]}_labels are numbers"
        )
    if texts:
        found = sorted({str(name) for values in labels.values() for name in values})
        names = list(class_names) if class_names is not None else found
        if unknown := [name for name in found if name not in names]:
            raise DataError(
                f'{shown(path)} has the label "{shown(unknown[0])}", which is none of the classes '
                f"{', '.join(names)}"
            )
        order = {name: label for label, name in enumerate(names)}
        return {
            part: np.array([order[str(name)] for name in values], np.int64)
            for part, values in labels.items()
        }, names
    largest = max(int(values.max()) for values in labels.values())
    if largest >= MOST_CLASSES:
        raise DataError(f"{shown(path)} has a label {largest}; labels must be below {MOST_CLASSES}")
    names = list(class_names) if class_names is not None else [str(c) for c in range(largest + 1)]
    if largest >= len(names):
        raise DataError(
            f"{shown(path)} has a label {largest}, but there are only {len(names)} classes; "
            f"labels count from 0"
        )
    return labels, names


def read_part(path: Path, part: str, num_classes: int) -> tuple[npt.NDArray[np.uint8], Labels]:
    """Read the images, ``(N, channels, height, width)``, and labels of one part into memory."""
    with opened(path, (part,)) as archive:
        labels, _ = numbered(
            path, {part: archive.labels(part)}, [str(c) for c in range(num_classes)]
        )
        images = np.concatenate(list(archive.slices(part, len(labels[part]))))
    check_size(shown(path), *images.shape[1:])
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)).astype(np.uint8), labels[part]
