"""Reading ``.npz`` files in MedMNIST layout, a slice at a time."""

import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedadb_app.data.arrays import MOST_CLASSES, check_parts_agree, check_size, create_array
from fedadb_app.errors import DataError

_DAMAGE = (  # what zipfile and NumPy raise for an archive that is cut off or altered
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,
    EOFError,
    KeyError,
    RuntimeError,
    ValueError,
)


def write_npz(
    path: Path,
    class_names: list[str] | None,
    folder: Path,
    needed: Sequence[str] = ("train", "test"),
) -> list[str]:
    """Turn a MedMNIST-layout archive into plain arrays, a slice at a time.

    Its training and validation parts are merged, as in the lineage (FedSOL).
    """
    largest = -1
    with _opened(path, needed) as archive:
        present = set(archive.namelist())
        for part, candidates in (("train", ("train", "val")), ("test", ("test",))):
            members = [m for m in candidates if f"{m}_images.npy" in present]
            if not members:
                continue
            per_member = {m: _npz_labels(archive, path, m) for m in members}
            counts = {m: len(member) for m, member in per_member.items()}
            _copy_images(archive, path, counts, folder / f"{part}_images.npy")
            labels = np.concatenate(list(per_member.values()))
            np.save(folder / f"{part}_labels.npy", labels)
            largest = max(largest, int(labels.max()))
    if largest >= MOST_CLASSES:
        raise DataError(f"{path} has a label {largest}; labels must be below {MOST_CLASSES}")
    if class_names is None:
        class_names = [str(c) for c in range(largest + 1)]
    _check_labels(path, largest, len(class_names))
    check_parts_agree(folder, path)
    return class_names


def read_part(
    path: Path, part: str, num_classes: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Read the images, ``(N, channels, height, width)``, and labels of one part into memory."""
    with _opened(path, (part,)) as archive:
        labels = _npz_labels(archive, path, part)
        images = np.concatenate(list(_image_slices(archive, path, part, len(labels))))
    _check_labels(path, int(labels.max()), num_classes)
    return images, labels


@contextmanager
def _opened(path: Path, needed: Sequence[str]) -> Iterator[zipfile.ZipFile]:
    """Open an archive that has these parts; what is damaged in it is a `DataError`."""
    try:
        with zipfile.ZipFile(path) as archive:
            missing = [p for p in needed if f"{p}_images.npy" not in archive.namelist()]
            if missing:
                raise DataError(
                    f"{path} has no array {missing[0]}_images; a file in MedMNIST layout has "
                    f"train_images, train_labels, test_images, test_labels (val_* are optional)"
                )
            yield archive
    except _DAMAGE as error:
        raise DataError(f"{path} is damaged or no .npz file: {error}") from error


def _check_labels(path: Path, largest: int, num_classes: int) -> None:
    if largest >= num_classes:
        raise DataError(
            f"{path} has a label {largest}, but there are only {num_classes} classes; "
            f"labels count from 0"
        )


def _npz_labels(archive: zipfile.ZipFile, path: Path, part: str) -> npt.NDArray[np.int64]:
    with archive.open(f"{part}_labels.npy") as file:
        labels = np.lib.format.read_array(file, allow_pickle=False)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or len(labels) == 0:
        raise DataError(
            f"{path}: {part}_labels must be whole numbers of shape (N,) or (N, 1), N > 0, "
            f"got {labels.dtype} of shape {labels.shape}"
        )
    if labels.min() < 0 or labels.max() > np.iinfo(np.int64).max:
        odd = labels.min() if labels.min() < 0 else labels.max()
        raise DataError(f"{path}: {part}_labels holds the label {odd}; labels count from 0")
    return labels.astype(np.int64)


def _copy_images(
    archive: zipfile.ZipFile, path: Path, counts: Mapping[str, int], target: Path
) -> None:
    """Stream the images of several members, name -> number of labels, into one array."""
    output: Any = None
    written = 0
    for part, count in counts.items():
        for images in _image_slices(archive, path, part, count):
            if output is None:
                output = create_array(target, (sum(counts.values()), *images.shape[1:]))
            if images.shape[1:] != output.shape[1:]:
                raise DataError(
                    f"{path}: {part}_images are {images.shape[1:]} (channels, height, width) but "
                    f"{next(iter(counts))}_images {output.shape[1:]}"
                )
            output[written : written + len(images)] = images
            written += len(images)
    output.flush()


def _image_slices(
    archive: zipfile.ZipFile, path: Path, part: str, labels: int, rows: int = 1024
) -> Iterator[npt.NDArray[np.uint8]]:
    with archive.open(f"{part}_images.npy") as file:
        major, _ = np.lib.format.read_magic(file)
        read_header = (
            np.lib.format.read_array_header_1_0
            if major == 1
            else np.lib.format.read_array_header_2_0
        )
        shape, fortran_order, dtype = read_header(file)
        if dtype != np.uint8 or fortran_order or len(shape) not in (3, 4):
            raise DataError(
                f"{path}: {part}_images must be uint8 of shape (N, height, width) or "
                f"(N, height, width, 3), in C order, got {dtype} of shape {shape}"
                f"{', in Fortran order' if fortran_order else ''}"
            )
        if shape[0] != labels:
            raise DataError(f"{path}: {shape[0]} {part}_images but {labels} {part}_labels")
        check_size(path, shape[1], shape[2], shape[3] if len(shape) == 4 else 1)
        row_bytes = int(np.prod(shape[1:]))
        for start in range(0, shape[0], rows):
            count = min(rows, shape[0] - start)
            # A cut-off member ends early here: reshape raises, and the caller says "damaged".
            block = np.frombuffer(file.read(count * row_bytes), np.uint8).reshape(count, *shape[1:])
            yield block[:, None] if len(shape) == 3 else block.transpose(0, 3, 1, 2)
