"""Opening images: a public data set's, by name or path, or a node's own.

Only the server (or ``fedadb data``) downloads; a client never does.
"""

import functools
from dataclasses import replace
from pathlib import Path

from fedadb_app.data.arrays import ImageSchema
from fedadb_app.data.intake.folder import Progress
from fedadb_app.data.intake.options import IntakeOptions
from fedadb_app.data.own_images import own_source
from fedadb_app.data.prepared import ImageDataset, cache_folder, open_source
from fedadb_app.data.registry import DATASETS
from fedadb_app.errors import DataError

_AS_THEY_ARE = IntakeOptions()


@functools.lru_cache(maxsize=2)
def open_dataset(
    name: str, data_dir: str, options: IntakeOptions = _AS_THEY_ARE, *, download: bool = False
) -> ImageDataset:
    """Open a data set by its name or path, preparing it first where this machine has not yet.

    Parameters
    ----------
    name : str
        A name of `DATASETS`.
    data_dir : str
        Where official files lie; ``""`` is the cache folder.
    options : IntakeOptions
        What is decided about a user's own images; official ones stay as they are.
    download : bool
        Whether missing official files may be fetched. Only the server sets this.

    Raises
    ------
    ConfigError
        Unknown name.
    DataError
        Missing, damaged or unusable data.
    """
    entry = DATASETS.find(name)
    if entry.take_in is not None:
        return open_source(name, entry.take_in(name, options))
    if entry.locate is None:
        raise DataError(f'dataset="{name}": its images are the nodes\' own')
    home = Path(data_dir).expanduser() if data_dir else cache_folder()
    return open_source(name, entry.locate(name, home, download))


def open_node_data(
    path: Path,
    schema: ImageSchema,
    options: IntakeOptions = _AS_THEY_ARE,
    progress: Progress | None = None,
) -> ImageDataset:
    """Open a node's own data, checking and preparing them first where they are new or changed.

    Parameters
    ----------
    path : Path
        An ``.npz`` file in MedMNIST layout or a folder of images, either with or without a test
        part; without, that of the result is empty.
    schema : ImageSchema
        What the federation expects.
    options : IntakeOptions
        What is decided about them beside it.
    progress : callable, optional
        Told how many files of how many are done.

    Raises
    ------
    DataError
        Missing, damaged or unusable data, or data that do not fit the federation.
    """
    wanted = replace(options, class_names=schema.class_names, image_shape=schema.image_shape)
    return open_source(str(path), own_source(path, wanted, "node-", progress))
