"""Opening images: a public data set's, by name or path, or a node's own.

Only the server (or ``fedadb data``) downloads; a client never does.
"""

import functools
import os
from pathlib import Path

import numpy as np

from fedadb_app.data.archives import write_npz
from fedadb_app.data.arrays import ImageSchema
from fedadb_app.data.folders import image_files, write_node_folder
from fedadb_app.data.prepared import (
    ImageDataset,
    Source,
    cache_folder,
    label_of,
    open_source,
    stamp_of,
)
from fedadb_app.data.registry import DATASETS
from fedadb_app.errors import DataError


@functools.lru_cache(maxsize=2)
def open_dataset(name: str, data_dir: str, *, download: bool = False) -> ImageDataset:
    """Open a data set by its name or path, preparing it first where this machine has not yet.

    Parameters
    ----------
    name : str
        A name of `DATASETS`.
    data_dir : str
        Where official files lie; ``""`` is the cache folder.
    download : bool
        Whether missing official files may be fetched. Only the server sets this.

    Raises
    ------
    ConfigError
        Unknown name.
    DataError
        Missing, damaged or unusable data.
    """
    locate = DATASETS.find(name).locate
    if locate is None:
        raise DataError(f'dataset="{name}": its images are the nodes\' own')
    home = Path(data_dir).expanduser() if data_dir else cache_folder()
    return open_source(name, locate(name, home, download))


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
    stamp = stamp_of(files, schema)
    source = Source(f"node-{label_of(path)}", stamp, lambda folder: write(path, schema, folder))
    return open_source(str(path), source)


def _write_node_npz(path: Path, schema: ImageSchema, folder: Path) -> list[str]:
    names = write_npz(path, list(schema.class_names), folder, needed=("train",))
    found = np.load(folder / "train_images.npy", mmap_mode="r").shape[1:]
    if found != schema.image_shape:
        raise DataError(
            f"{path}: images are {found} (channels, height, width) but the federation's images "
            f"are {schema.image_shape}; convert them"
        )
    return names
