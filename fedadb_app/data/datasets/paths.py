"""A user's own data set, by its absolute path: an ``.npz`` file or a folder of images."""

import os
from pathlib import Path

from fedadb_app.data.dataset import Dataset
from fedadb_app.data.intake.options import IntakeOptions
from fedadb_app.data.own_images import own_source
from fedadb_app.data.prepared import Source
from fedadb_app.errors import ConfigError, DataError
from fedadb_app.registry import Family


def _take_in(name: str, options: IntakeOptions) -> Source:
    path = Path(name).expanduser()
    if not os.path.exists(path):
        raise DataError(f'dataset="{name}": there is no such file or folder')
    return own_source(path, options)


_OWN = Dataset(title="your own images", paper="", locate=None, take_in=_take_in)


def _find(name: str) -> Dataset | None:
    path = Path(os.path.expanduser(name))  # Path's own raises for an unknown user
    if not path.is_absolute():
        if path.suffix == ".npz" or os.sep in name:
            raise ConfigError(f'dataset="{name}": give the path of a data set as an absolute path')
        return None
    return _OWN


FAMILY = Family(
    "the absolute path of an .npz file in MedMNIST layout or of a folder of images", _find
)
