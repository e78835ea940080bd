"""SVHN, CIFAR-10 and CIFAR-100, downloaded, checked and read by torchvision.

CIFAR's files are pickles. torchvision unpickles none whose checksum is not that of the official
file, so no stranger's code is run.
"""

from pathlib import Path
from typing import Any

import numpy as np
from torchvision.datasets import CIFAR10, CIFAR100, SVHN

from fedadb_app.errors import DataError

_CIFAR = {"cifar10": CIFAR10, "cifar100": CIFAR100}


def official_files(name: str, root: Path) -> list[Path]:
    """Return the files that ``svhn``, ``cifar10`` or ``cifar100`` consists of."""
    if name == "svhn":
        return [root / SVHN.split_list[part][1] for part in ("train", "test")]
    kind = _CIFAR[name]
    batches = [file for file, _ in [*kind.train_list, *kind.test_list]]
    return [root / kind.base_folder / file for file in [*batches, kind.meta["filename"]]]


def fetch(name: str, root: Path) -> None:
    """Download the official files to `root`, and check them."""
    for part in ("train", "test"):
        _open(name, root, part, download=True)


def write_official(name: str, root: Path, folder: Path) -> list[str]:
    """Turn official files into plain arrays."""
    for part in ("train", "test"):
        try:
            read = _open(name, root, part)
        except RuntimeError as error:  # torchvision: not there, or another checksum
            raise DataError(
                f'dataset="{name}": its files in {root} are damaged or not the official ones; '
                f"remove them and run: fedadb data {name}"
            ) from error
        images, labels = (
            (read.data, read.labels)
            if name == "svhn"
            else (read.data.transpose(0, 3, 1, 2), read.targets)
        )
        np.save(folder / f"{part}_images.npy", np.ascontiguousarray(images))
        np.save(folder / f"{part}_labels.npy", np.asarray(labels, np.int64))
    return [str(digit) for digit in range(10)] if name == "svhn" else list(read.classes)


def _open(name: str, root: Path, part: str, download: bool = False) -> Any:  # noqa: ANN401
    if name == "svhn":
        return SVHN(root, part, download=download)
    return _CIFAR[name](root, part == "train", download=download)
