"""A user's own data set, by its absolute path: an ``.npz`` file or a folder of class folders."""

import os
from pathlib import Path

from fedadb_app.data.archives import write_npz
from fedadb_app.data.dataset import Dataset
from fedadb_app.data.folders import image_files, write_folder
from fedadb_app.data.prepared import Source, label_of, stamp_of
from fedadb_app.errors import ConfigError, DataError
from fedadb_app.registry import Family


def _locate(name: str, home: Path, download: bool) -> Source:
    del home, download
    path = Path(name).expanduser()
    if path.is_dir():
        stamp = stamp_of(image_files(path))
        return Source(label_of(path), stamp, lambda folder: write_folder(path, folder))
    if path.is_file():
        stamp = stamp_of([path])
        return Source(label_of(path), stamp, lambda folder: write_npz(path, None, folder))
    raise DataError(f'dataset="{name}": there is no such file or folder')


_OWN = Dataset(title="your own images", paper="", locate=_locate)


def _find(name: str) -> Dataset | None:
    path = Path(os.path.expanduser(name))  # Path's own raises for an unknown user
    if not path.is_absolute():
        if path.suffix == ".npz" or os.sep in name:
            raise ConfigError(f'dataset="{name}": give the path of a data set as an absolute path')
        return None
    return _OWN


FAMILY = Family(
    "the absolute path of an .npz file in MedMNIST layout or of a folder of class folders", _find
)
