"""MedMNIST: every 2-D flag with one label per image, at every size (Yang et al., 2023)."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedadb_app.data.dataset import Dataset
from fedadb_app.data.downloads import need_files
from fedadb_app.data.intake.archive_intake import write_archive
from fedadb_app.data.prepared import Source, stamp_of
from fedadb_app.errors import ConfigError
from fedadb_app.registry import Family


def _table() -> Mapping[str, Mapping[str, Any]]:
    """Return MedMNIST's own table, of 2-D flags alone."""
    # Imported here: it brings pandas and scikit-learn along.
    from medmnist.info import INFO

    return {flag: info for flag, info in INFO.items() if not flag.endswith("3d")}


def class_names(flag: str) -> list[str]:
    """Return a flag's class names in the order of their labels."""
    labels = _table()[flag.partition("_")[0]]["label"]
    return [labels[str(i)] for i in range(len(labels))]


def official_file(name: str, flag: str, home: Path, download: bool) -> Path:
    """Return a flag's file, there or fetched; `name` is the data set that needs it."""
    key, _, side = flag.partition("_")
    info, suffix = _table()[key], f"_{side}" if side else ""
    path = home / f"{flag}.npz"

    def fetch(folder: Path) -> None:
        from torchvision.datasets.utils import download_url

        download_url(info[f"url{suffix}"], folder, path.name, info[f"MD5{suffix}"])

    need_files(name, home, [path], fetch if download else None)
    return path


def _locate(name: str, home: Path, download: bool) -> Source:
    names = class_names(name)
    path = official_file(name, name, home, download)
    return Source(name, stamp_of([path], names), lambda folder: write_archive(path, names, folder))


def _find(name: str) -> Dataset | None:
    flag, _, side = name.partition("_")
    info = _table().get(flag)
    if info is None or (name != flag and f"MD5_{side}" not in info):
        return None
    if info["task"].startswith("multi-label"):
        raise ConfigError(f'dataset="{name}" has several labels per image; one is needed')
    pixels = int(side or 28)
    return Dataset(
        title=info["python_class"],
        paper="Yang et al., Scientific Data 2023 (MedMNIST)",
        locate=_locate,
        image_shape=(info["n_channels"], pixels, pixels),
        num_classes=len(info["label"]),
        licence=info["license"],
    )


def _examples() -> Iterable[str]:
    return _table()


FAMILY = Family(
    "a 2-D MedMNIST flag such as pathmnist (pathmnist_64, _128 or _224 for larger images)",
    _find,
    _examples,
)
