"""Where images come from, and the memory-mapped form that every worker of a machine shares.

Each source is written once, under a lock, as plain ``.npy`` files into the user's cache folder;
afterwards a worker only maps them. Pixels stay uint8, channels first; labels are int64 of shape
``(N,)``. Only the server (or ``fedadb data``) downloads; a client never does.
"""

import functools
import hashlib
import json
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock
from PIL import Image, UnidentifiedImageError

from fedadb_app.errors import DataError

SMALLEST_SIDE, LARGEST_SIDE = 28, 224
"""Image sides, in pixels, that the models accept."""

_FORMAT = 1  # raise when the prepared files change, so that old caches are not read
_IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"})
_HELD_OUT_EVERY = (
    5  # a folder without train/test parts: every fifth image of a class is a test image
)


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
    """

    name: str
    class_names: tuple[str, ...]
    train_images: npt.NDArray[np.uint8]
    train_labels: npt.NDArray[np.int64]
    test_images: npt.NDArray[np.uint8]
    test_labels: npt.NDArray[np.int64]

    @property
    def num_classes(self) -> int:
        """Number of classes, those without a sample included."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        channels, height, width = self.train_images.shape[1:]
        return channels, height, width


def cache_folder() -> Path:
    """Return the user's cache folder of this app."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fedadb"


@functools.lru_cache(maxsize=2)
def open_dataset(name: str, data_dir: str, *, download: bool = False) -> ImageDataset:
    """Open a data set by its name or path, preparing it first where this machine has not yet.

    Parameters
    ----------
    name : str
        ``digits``, a 2-D MedMNIST flag (``pathmnist``, ``pathmnist_64``, …), the path of an
        ``.npz`` file in MedMNIST layout, or the path of a folder of class folders.
    data_dir : str
        Where MedMNIST files lie; ``""`` is the cache folder.
    download : bool
        Whether a missing MedMNIST file may be fetched. Only the server sets this.

    Raises
    ------
    DataError
        Unknown name, missing, damaged or unusable data.
    """
    source = _find_source(name, data_dir, download)
    folder = cache_folder() / "prepared" / f"{source.label}-{source.stamp}"
    if not (folder / "meta.json").is_file():
        _prepare(source, folder)
    meta = json.loads((folder / "meta.json").read_text())
    arrays = {
        part: np.load(folder / f"{part}.npy", mmap_mode="c" if "images" in part else None)
        for part in ("train_images", "train_labels", "test_images", "test_labels")
    }
    return ImageDataset(name=name, class_names=tuple(meta["class_names"]), **arrays)


@dataclass(frozen=True)
class _Source:
    label: str
    stamp: str  # changes with the content, so that a replaced file is prepared anew
    write: Callable[[Path], list[str]]  # writes the four arrays, returns the class names


def _find_source(name: str, data_dir: str, download: bool) -> _Source:
    if name == "digits":
        return _Source("digits", str(_FORMAT), _write_digits)
    path = Path(name).expanduser()
    if path.is_absolute() or path.suffix == ".npz" or os.sep in name:
        if not path.is_absolute():
            raise DataError(f'dataset="{name}": give the path of a data set as an absolute path')
        if path.is_dir():
            return _Source(
                _label(path), _stamp(_image_files(path)), lambda f: _write_folder(path, f)
            )
        if path.is_file():
            return _Source(_label(path), _stamp([path]), lambda f: _write_npz(path, None, f))
        raise DataError(f'dataset="{name}": there is no such file or folder')
    names, official = _medmnist(name)
    path = (Path(data_dir).expanduser() if data_dir else cache_folder()) / f"{name}.npz"
    if not path.is_file():
        if not download:
            raise DataError(
                f'dataset="{name}": {path} does not exist on this machine; put the official file '
                f"there (clients never download) or run: fedadb data {name}"
            )
        _download(name, official["url"], official["md5"], path)
    return _Source(name, _stamp([path]), lambda f: _write_npz(path, names, f))


def _label(path: Path) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in path.stem)[:40]


def _stamp(files: list[Path]) -> str:
    digest = hashlib.sha256(str(_FORMAT).encode())
    for file in files:
        status = file.stat()
        digest.update(f"{file.resolve()}|{status.st_size}|{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _prepare(source: _Source, folder: Path) -> None:
    """Write a source's arrays to `folder`, complete or not at all."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if (folder / "meta.json").is_file():  # another worker was faster
                return
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                class_names = source.write(Path(scratch))
                (Path(scratch) / "meta.json").write_text(json.dumps({"class_names": class_names}))
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(scratch, folder)
    except OSError as error:
        raise DataError(f"cannot write the prepared data to {folder}: {error}") from error


# --- digits ---------------------------------------------------------------------------------


def _write_digits(folder: Path) -> list[str]:
    """Scikit-learn's bundled 1 797 scanned digits, 8x8 with 17 grey levels, enlarged to 28x28."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    grey = np.round(digits.images * (255 / 16)).astype(np.uint8)
    side = (SMALLEST_SIDE, SMALLEST_SIDE)
    images = np.stack(
        [np.asarray(Image.fromarray(g).resize(side, Image.Resampling.BILINEAR)) for g in grey]
    )[:, None]
    labels = digits.target.astype(np.int64)
    # A fixed split: which images are held out does not depend on the run's seed.
    train, test = train_test_split(
        np.arange(len(labels)), test_size=360, stratify=labels, random_state=0
    )
    for part, index in (("train", np.sort(train)), ("test", np.sort(test))):
        np.save(folder / f"{part}_images.npy", images[index])
        np.save(folder / f"{part}_labels.npy", labels[index])
    return [str(digit) for digit in range(10)]


# --- MedMNIST files -------------------------------------------------------------------------


def _medmnist(name: str) -> tuple[list[str], Mapping[str, str]]:
    """Look a flag up in MedMNIST's own table: class names, download address and checksum."""
    from medmnist.info import INFO

    flag, _, side = name.partition("_")
    flat = sorted(f for f, info in INFO.items() if not f.endswith("3d"))
    if flag not in flat or (side and f"MD5_{side}" not in INFO[flag]):
        raise DataError(
            f'dataset="{name}" is unknown: use "digits", a 2-D MedMNIST flag ({", ".join(flat)}; '
            f"with _64, _128 or _224 for larger images), or the absolute path of an .npz file or "
            f"of a folder of class folders"
        )
    info = INFO[flag]
    if info["task"].startswith("multi-label"):
        raise DataError(f'dataset="{name}" has several labels per image; one is needed')
    suffix = f"_{side}" if side else ""
    official = {"url": info[f"url{suffix}"], "md5": info[f"MD5{suffix}"]}
    return [info["label"][str(i)] for i in range(len(info["label"]))], official


def _download(name: str, url: str, md5: str, path: Path) -> None:
    """Fetch an official file once: under a lock, checked, then moved into place."""
    from torchvision.datasets.utils import download_url

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if path.is_file():
                return
            with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
                download_url(url, scratch, path.name, md5)
                os.replace(Path(scratch) / path.name, path)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f'dataset="{name}": downloading it to {path} failed ({error}); '
            f"put the file there by hand or set data-dir to the folder that holds it"
        ) from error


def _write_npz(path: Path, class_names: list[str] | None, folder: Path) -> list[str]:
    """Turn a MedMNIST-layout archive into plain arrays, a slice at a time.

    Its training and validation parts are merged, as in the lineage (BASELINES.md 11.4).
    """
    try:
        with zipfile.ZipFile(path) as archive:
            present = set(archive.namelist())
            missing = [p for p in ("train", "test") if f"{p}_images.npy" not in present]
            if missing:
                raise DataError(
                    f"{path} has no array {missing[0]}_images; a file in MedMNIST layout has "
                    f"train_images, train_labels, test_images, test_labels (val_* are optional)"
                )
            train = [p for p in ("train", "val") if f"{p}_images.npy" in present]
            largest = -1
            for part, members in (("train", train), ("test", ["test"])):
                labels = np.concatenate([_npz_labels(archive, path, m) for m in members])
                _copy_images(archive, path, members, len(labels), folder / f"{part}_images.npy")
                np.save(folder / f"{part}_labels.npy", labels)
                largest = max(largest, int(labels.max()))
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError) as error:
        raise DataError(f"{path} is damaged or no .npz file: {error}") from error
    if class_names is None:
        class_names = [str(c) for c in range(largest + 1)]
    if largest >= len(class_names):
        raise DataError(f"{path} has a label {largest}, but only {len(class_names)} classes")
    _check_parts_agree(folder, path)
    return class_names


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
    if labels.min() < 0:
        raise DataError(f"{path}: {part}_labels holds the negative label {labels.min()}")
    return labels.astype(np.int64)


def _copy_images(
    archive: zipfile.ZipFile, path: Path, parts: list[str], total: int, target: Path
) -> None:
    """Stream the images of several members into one channels-first array."""
    output: Any = None
    written = 0
    for part in parts:
        for images in _image_slices(archive, path, part):
            if output is None:
                shape = (total, *images.shape[1:])
                output = np.lib.format.open_memmap(target, "w+", np.uint8, shape)
            if images.shape[1:] != output.shape[1:] or written + len(images) > total:
                raise DataError(f"{path}: {part}_images and {part}_labels do not fit together")
            output[written : written + len(images)] = images
            written += len(images)
    if output is None or written != total:
        raise DataError(f"{path}: {written} images but {total} labels in {' + '.join(parts)}")
    output.flush()


def _image_slices(
    archive: zipfile.ZipFile, path: Path, part: str, rows: int = 1024
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
                f"(N, height, width, 3), got {dtype} of shape {shape}"
            )
        _check_size(path, shape[1], shape[2], shape[3] if len(shape) == 4 else 1)
        row_bytes = int(np.prod(shape[1:]))
        for start in range(0, shape[0], rows):
            count = min(rows, shape[0] - start)
            # A cut-off member ends early here: reshape raises, and the caller says "damaged".
            block = np.frombuffer(file.read(count * row_bytes), np.uint8).reshape(count, *shape[1:])
            yield block[:, None] if len(shape) == 3 else block.transpose(0, 3, 1, 2)


def _check_size(where: Path, height: int, width: int, channels: int) -> None:
    if channels not in (1, 3):
        raise DataError(
            f"{where}: images have {channels} channels; 1 (grey) or 3 (RGB) are allowed"
        )
    if min(height, width) < SMALLEST_SIDE or max(height, width) > LARGEST_SIDE:
        raise DataError(
            f"{where}: images are {height}x{width} pixels; "
            f"each side must be {SMALLEST_SIDE} to {LARGEST_SIDE}"
        )


def _check_parts_agree(folder: Path, path: Path) -> None:
    train, test = (
        np.load(folder / f"{p}_images.npy", mmap_mode="r").shape[1:] for p in ("train", "test")
    )
    if train != test:
        raise DataError(f"{path}: training images are {train}, test images {test}")


# --- folders of class folders ---------------------------------------------------------------


def _image_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in _IMAGE_SUFFIXES)


def _write_folder(root: Path, folder: Path) -> list[str]:
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
            for position, file in enumerate(_class_files(root / name, True)):
                part = "test" if position % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1 else "train"
                files[part].append((file, label))
    for part, labelled in files.items():
        if not labelled:
            raise DataError(f"{root} gives no {part} image")
        _write_images(labelled, folder / f"{part}_images.npy")
        np.save(folder / f"{part}_labels.npy", np.array([y for _, y in labelled], np.int64))
    _check_parts_agree(folder, root)
    return names


def _class_names(top: Path) -> list[str]:
    names = sorted(p.name for p in top.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not names:
        raise DataError(f"{top} holds no class folder")
    return names


def _class_files(folder: Path, needed: bool) -> list[Path]:
    files = _image_files(folder) if folder.is_dir() else []
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
            _check_size(file, pixels.shape[1], pixels.shape[2], pixels.shape[0])
            shape = (len(labelled), *pixels.shape)
            output = np.lib.format.open_memmap(target, "w+", np.uint8, shape)
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
            grey = image.mode in {"1", "L", "LA"}
            pixels = np.asarray(image.convert("L" if grey else "RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise DataError(f"{file} cannot be read as an image: {error}") from error
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
