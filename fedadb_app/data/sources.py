"""Where images come from, and the memory-mapped form that every worker of a machine shares.

They are a public data set's, by name or path, or a node's own.

Each source is written once, under a lock, as plain ``.npy`` files into the user's cache folder;
afterwards a worker only maps them. Pixels stay uint8, channels first; labels are int64 of shape
``(N,)``. Only the server (or ``fedadb data``) downloads; a client never does.
"""

import functools
import hashlib
import http.client
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from filelock import FileLock
from PIL import Image

from fedadb_app.data.archives import write_npz
from fedadb_app.data.arrays import SMALLEST_SIDE, ImageSchema
from fedadb_app.data.folders import (
    image_files,
    write_domains,
    write_folder,
    write_node_folder,
)
from fedadb_app.data.styles import STYLED, write_styles
from fedadb_app.errors import DataError

_FORMAT = 1  # raise when the prepared files change, so that old caches are not read


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
    train_domains : numpy.ndarray or None
        Which domain each training image comes from, int64 ``(N,)``; None where there is but one.
    """

    name: str
    class_names: tuple[str, ...]
    train_images: npt.NDArray[np.uint8]
    train_labels: npt.NDArray[np.int64]
    test_images: npt.NDArray[np.uint8]
    test_labels: npt.NDArray[np.int64]
    train_domains: npt.NDArray[np.int64] | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes, those without a sample included."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        channels, height, width = self.train_images.shape[1:]
        return channels, height, width

    @property
    def schema(self) -> ImageSchema:
        """What other data must agree with, to be trained on together with these."""
        return ImageSchema(self.class_names, self.image_shape)


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
        ``digits``, a 2-D MedMNIST flag (``pathmnist``, ``pathmnist_64``, …), ``svhn``,
        ``cifar10``, ``cifar100``, ``cinic10``, ``pacs`` (``pacs_64``, ``pacs_128``),
        ``pathmnist-styles``, the path of an ``.npz`` file in MedMNIST layout, or the path of a
        folder of class folders.
    data_dir : str
        Where official files lie; ``""`` is the cache folder.
    download : bool
        Whether missing official files may be fetched. Only the server sets this.

    Raises
    ------
    DataError
        Unknown name, missing, damaged or unusable data.
    """
    return _open_source(name, _find_source(name, data_dir, download))


def open_node_data(path: Path, schema: ImageSchema) -> ImageDataset:
    """Open a node's own data, checking and preparing them first where they are new or changed.

    Parameters
    ----------
    path : Path
        An ``.npz`` file in MedMNIST layout or a folder of class folders, either with or without
        a test part; without, that of the result is empty.
    schema : ImageSchema
        What the federation expects.

    Raises
    ------
    DataError
        Missing, damaged or unusable data, or data that do not fit the federation.
    """
    if os.path.isdir(path):  # unlike Path's, no error where a folder above is closed to us
        files, write = image_files(path), write_node_folder
    elif os.path.isfile(path):
        files, write = [path], _write_node_npz
    else:
        raise DataError(f"{path}: this node has no such file or folder, or no right to see it")
    stamp = _stamp(files, schema)
    source = _Source(f"node-{_label(path)}", stamp, lambda folder: write(path, schema, folder))
    return _open_source(str(path), source)


def _write_node_npz(path: Path, schema: ImageSchema, folder: Path) -> list[str]:
    names = write_npz(path, list(schema.class_names), folder, needed=("train",))
    found = np.load(folder / "train_images.npy", mmap_mode="r").shape[1:]
    if found != schema.image_shape:
        raise DataError(
            f"{path}: images are {found} (channels, height, width) but the federation's images "
            f"are {schema.image_shape}; convert them"
        )
    return names


def _open_source(name: str, source: "_Source") -> ImageDataset:
    folder = cache_folder() / "prepared" / f"{source.label}-{source.stamp}"
    if not (folder / "meta.json").is_file():
        _prepare(source, folder)
    meta = json.loads((folder / "meta.json").read_text())
    arrays = {
        part: np.load(folder / f"{part}.npy", mmap_mode="c" if "images" in part else None)
        for part in ("train_images", "train_labels", "train_domains", "test_images", "test_labels")
        if (folder / f"{part}.npy").is_file()
    }
    for kind in ("images", "labels"):  # a node may have no test part
        arrays.setdefault(f"test_{kind}", arrays[f"train_{kind}"][:0])
    return ImageDataset(name=name, class_names=tuple(meta["class_names"]), **arrays)


@dataclass(frozen=True)
class _Source:
    label: str
    stamp: str  # changes with the content, so that a replaced file is prepared anew
    write: Callable[[Path], list[str]]  # writes the arrays, returns the class names


def _find_source(name: str, data_dir: str, download: bool) -> _Source:
    if name == "digits":
        return _Source("digits", str(_FORMAT), _write_digits)
    path = Path(name).expanduser()
    if path.is_absolute() or path.suffix == ".npz" or os.sep in name:
        if not path.is_absolute():
            raise DataError(f'dataset="{name}": give the path of a data set as an absolute path')
        if path.is_dir():
            return _Source(_label(path), _stamp(image_files(path)), lambda f: write_folder(path, f))
        if path.is_file():
            return _Source(_label(path), _stamp([path]), lambda f: write_npz(path, None, f))
        raise DataError(f'dataset="{name}": there is no such file or folder')
    home = Path(data_dir).expanduser() if data_dir else cache_folder()
    if name in _TORCHVISION:
        return _torchvision_source(name, home, download)
    if name == "cinic10":
        # Its class folders alone: all 270 000 files would take each worker half a minute.
        write_small = functools.partial(write_folder, side=32)
        return _folder_source(name, home / name, "*/*/", write_small)
    if name in _PACS:
        write = functools.partial(write_domains, side=_PACS[name])
        return _folder_source(name, home / "pacs", "*/*/*", write)
    flag, write_flag = ("pathmnist", write_styles) if name == STYLED else (name, write_npz)
    names, official = _medmnist(flag)
    path = home / f"{flag}.npz"

    def fetch(folder: Path) -> None:
        from torchvision.datasets.utils import download_url

        download_url(official["url"], folder, path.name, official["md5"])

    _need(name, home, [path], fetch if download else None)
    return _Source(name, _stamp([path], names), lambda f: write_flag(path, names, f))


def _label(path: Path) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in path.stem)[:40]


def _stamp(files: list[Path], facts: object = None) -> str:
    digest = hashlib.sha256(f"{_FORMAT}|{facts}\n".encode())
    for file in files:
        try:
            status = file.stat()
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error}") from error
        # Both paths: a link's own says its class, its target's says which pixels.
        facts = f"{file}|{file.resolve()}|{status.st_size}|{status.st_mtime_ns}\n"
        digest.update(os.fsencode(facts))
    return digest.hexdigest()[:16]


def _prepare(source: _Source, folder: Path) -> None:
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
                (ready / "meta.json").write_text(json.dumps({"class_names": class_names}))
                shutil.rmtree(folder, ignore_errors=True)
                os.replace(ready, folder)  # readers, who take no lock, see all of it or nothing
    except OSError as error:
        raise DataError(f"cannot prepare the data in {folder}: {error}") from error


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
    if flag not in flat or (name != flag and f"MD5_{side}" not in INFO[flag]):
        raise DataError(
            f'dataset="{name}" is unknown: use "digits", {", ".join(_OTHERS)}, a 2-D MedMNIST flag '
            f"({', '.join(flat)}; with _64, _128 or _224 for larger images), or the absolute path "
            f"of an .npz file or of a folder of class folders"
        )
    info = INFO[flag]
    if info["task"].startswith("multi-label"):
        raise DataError(f'dataset="{name}" has several labels per image; one is needed')
    suffix = f"_{side}" if side else ""
    official = {"url": info[f"url{suffix}"], "md5": info[f"MD5{suffix}"]}
    return [info["label"][str(i)] for i in range(len(info["label"]))], official


# --- official files -------------------------------------------------------------------------

_TORCHVISION = ("svhn", "cifar10", "cifar100")
_PACS = {"pacs": 224, "pacs_64": 64, "pacs_128": 128}
"""Side of the images, which are 227x227 in the official files; 224 is InceptionV1's own."""


_OTHERS = (*_TORCHVISION, "cinic10", *_PACS, STYLED)


def _torchvision_source(name: str, home: Path, download: bool) -> _Source:
    from fedadb_app.data.official import fetch, official_files, write_official

    files = official_files(name, home)
    _need(name, home, files, (lambda folder: fetch(name, folder)) if download else None)
    return _Source(name, _stamp(files), lambda folder: write_official(name, home, folder))


def _folder_source(
    name: str, root: Path, watched: str, write: Callable[[Path, Path], list[str]]
) -> _Source:
    """Return a data set that lies in a folder; `watched` is what its stamp follows from."""
    if not root.is_dir():
        raise DataError(
            f'dataset="{name}": the folder {root} does not exist on this machine; this data set '
            f"is not downloaded: unpack it there, or set data-dir to the folder that holds it"
        )
    return _Source(name, _stamp(sorted(root.glob(watched))), lambda folder: write(root, folder))


def _need(name: str, home: Path, files: list[Path], fetch: Callable[[Path], object] | None) -> None:
    """See to it that official files are there; `fetch`, which checks them, is None on a client."""
    missing = [file for file in files if not file.is_file()]
    if not missing:
        return
    if fetch is None:
        raise DataError(
            f'dataset="{name}": {missing[0]} does not exist on this machine; put the official '
            f"file there (clients never download) or run: fedadb data {name}"
        )
    _download(name, home, files, fetch)


def _download(name: str, home: Path, files: list[Path], fetch: Callable[[Path], object]) -> None:
    """Fetch official files once: under a lock, checked, then moved into place."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / f"{name}.lock"):
            if all(file.is_file() for file in files):
                return
            with tempfile.TemporaryDirectory(dir=home) as scratch:
                fetch(Path(scratch))
                for file in files:
                    file.parent.mkdir(exist_ok=True)
                    os.replace(Path(scratch) / file.relative_to(home), file)
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        raise DataError(
            f'dataset="{name}": downloading it to {os.path.commonpath(files)} failed ({error}); '
            f"put its files there by hand or set data-dir to the folder that holds them"
        ) from error
