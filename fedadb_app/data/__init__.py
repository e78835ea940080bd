"""Images from where (sources), who holds what (partition), arrays to batches (batches)."""

from functools import lru_cache

import torch

from fedadb_app.config import RunConfig
from fedadb_app.data.batches import LocalData
from fedadb_app.data.partition import Partition, make_partition
from fedadb_app.data.sources import open_dataset


@lru_cache(maxsize=1)
def partition_of(config: RunConfig, num_clients: int) -> Partition:
    """Return who holds what in a run; computed once a process, by server and clients alike."""
    labels = open_dataset(config.dataset, config.data_dir).train_labels
    return make_partition(labels, num_clients, config.partition, config.alpha, config.seed)


def local_data(
    config: RunConfig, partition_id: int, num_partitions: int, device: torch.device
) -> LocalData:
    """Return one client's part of a public data set, without copying an image.

    Raises
    ------
    DataError
        If the data are not on this machine, or cannot feed that many clients.
    """
    dataset = open_dataset(config.dataset, config.data_dir)
    positions = partition_of(config, num_partitions).indices[partition_id]
    return LocalData.from_arrays(
        dataset.train_images,
        dataset.train_labels,
        positions,
        dataset.num_classes,
        device,
        flip=config.augment,
    )
