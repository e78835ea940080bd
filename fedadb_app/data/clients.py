"""What each client holds, and what all of them have in common."""

from __future__ import annotations  # the configuration asks this package's registries

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from fedadb_app.data.arrays import ImageSchema, check_size, held_out
from fedadb_app.data.batches import LocalData
from fedadb_app.data.intake.layout import in_one_line
from fedadb_app.data.intake.report import IntakeReport
from fedadb_app.data.noise import noise_of, with_noise
from fedadb_app.data.partition import Partition, Samples
from fedadb_app.data.preparation import Preparation
from fedadb_app.data.prepared import ImageDataset
from fedadb_app.data.registry import DATASETS, PARTITIONS, preparation_of
from fedadb_app.data.sources import open_dataset, open_node_data
from fedadb_app.data.validation import draw_fraction, draw_validation
from fedadb_app.errors import ConfigError
from fedadb_app.randomness import numpy_generator

if TYPE_CHECKING:
    from fedadb_app.config import RunConfig

Labels = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PartitionClaim:
    """Which part of a public data set a client holds: part `partition_id` of `num_partitions`."""

    partition_id: int
    num_partitions: int


@dataclass(frozen=True)
class SampleCounts:
    """How many samples a client trains on, n_k, and keeps for evaluation and for validation."""

    train: int
    held_out: int
    validation: int = 0


@dataclass(frozen=True)
class ClientData:
    """One client's samples: those it trains on, those it evaluates on, and where they are from.

    `validation` are those of a node's own that choose a round, None where it keeps none; `digest`
    is that of the whole data set, `report` how a node's own images came in.
    """

    train: LocalData
    held_out: LocalData
    digest: str = ""
    report: IntakeReport | None = None
    validation: LocalData | None = None

    @property
    def counts(self) -> SampleCounts:
        """How many there are."""
        kept = 0 if self.validation is None else len(self.validation)
        return SampleCounts(len(self.train), len(self.held_out), kept)


def dataset_of(config: RunConfig, *, download: bool = False) -> ImageDataset:
    """Return the data set that a run's configuration names, taken in as it says.

    Raises
    ------
    DataError
        As `open_dataset`.
    """
    # One way of calling it for one data set, so that a process opens it once.
    own = DATASETS.find(config.dataset).take_in is not None
    options = (config.intake,) if own else ()
    where = {"download": True} if download else {}
    return open_dataset(config.dataset, config.data_dir, *options, **where)


def image_schema(config: RunConfig) -> ImageSchema:
    """Return what the images of all clients have in common, as server and clients know it.

    Raises
    ------
    DataError
        If no model takes ``image-shape``, or the data set is not on this machine.
    """
    if not config.own_data:
        return dataset_of(config).schema
    channels, height, width = config.image_size
    check_size(f'image-shape="{config.image_shape}"', height, width, channels)
    return ImageSchema(config.class_names, config.image_size)


def server_dataset(config: RunConfig) -> ImageDataset | None:
    """Return what the server deals out or evaluates on; None where only the nodes have data.

    Raises
    ------
    ConfigError, DataError
        If the data set cannot be had, or differs from what the nodes' own data have to be.
    """
    if config.only_nodes:
        return None
    dataset = dataset_of(config, download=True)
    if config.own_data:
        schema = image_schema(config)
        numbered = tuple(map(str, range(schema.num_classes)))  # the file has no names
        if dataset.schema not in (schema, ImageSchema(numbered, schema.image_shape)):
            raise ConfigError(
                f'classes="{config.classes}" with image-shape="{config.image_shape}" does not fit '
                f'dataset="{config.dataset}": it has images of '
                f"{'x'.join(map(str, dataset.image_shape))} with the {dataset.num_classes} "
                f"classes {in_one_line(dataset.class_names)}, in this order"
            )
    return dataset


@lru_cache(maxsize=1)
def validation_rows(config: RunConfig) -> Rows:
    """Return the rows of the training part that no client trains on; `draw_validation`, once."""
    return draw_validation(config, dataset_of(config))


@lru_cache(maxsize=1)
def partition_of(config: RunConfig, num_clients: int) -> Partition:
    """Return who holds what in a run; computed once a process, by server and clients alike."""
    dataset = dataset_of(config)
    kept = np.ones(len(dataset.train_labels), np.bool_)
    kept[validation_rows(config)] = False
    rows, domains = np.flatnonzero(kept), dataset.train_domains
    samples = Samples(
        config.dataset,
        dataset.train_labels[rows],
        None if domains is None else domains[rows],
    )
    rng = numpy_generator(config.seed, "partition")
    deal = PARTITIONS.find(config.partition).deal
    dealt = deal(samples, num_clients, rng, **rule_settings(config))
    return replace(dealt, indices=tuple(rows[part] for part in dealt.indices))


def rule_settings(config: RunConfig) -> dict[str, float]:
    """Return what the run's rule is given, by name."""
    return {key: getattr(config, key) for key in PARTITIONS.find(config.partition).settings}


def partition_counts(config: RunConfig, partition: Partition) -> Mapping[int, SampleCounts]:
    """Return what every client of a partition trains on and holds out."""
    dataset = dataset_of(config)
    divided = [_divide(config, dataset, rows) for rows in partition.indices]
    return {k: SampleCounts(len(train), len(kept)) for k, (train, kept) in enumerate(divided)}


def client_data(config: RunConfig, held: PartitionClaim | Path, device: torch.device) -> ClientData:
    """Return a client's part of a public data set, or its own data.

    No image is copied, but for those that ``feature-noise`` changes.

    Raises
    ------
    DataError
        If the data are not on this machine, unusable, or cannot feed that many clients.
    """
    if isinstance(held, Path):
        return _own_data(config, held, device)
    dataset = dataset_of(config)
    rows = partition_of(config, held.num_partitions).indices[held.partition_id]
    preparation = preparation_of(config.dataset)
    images, labels = dataset.train_images, dataset.train_labels
    places: Rows | None = None
    if config.feature_noise:
        deviation = noise_of(held.partition_id, held.num_partitions, config.feature_noise)
        images = with_noise(images[rows], deviation, config.seed, held.partition_id)
        places = np.empty(len(labels), np.int64)
        places[rows] = np.arange(len(rows))
        labels = labels[rows]

    def part(positions: Rows, augmented: bool = False) -> LocalData:
        positions = positions if places is None else places[positions]
        return LocalData.from_arrays(
            images, labels, positions, dataset.num_classes, device, augmented, preparation
        )

    train, kept = _divide(config, dataset, rows)
    return ClientData(part(train, config.augment), part(kept), dataset.digest, dataset.report)


def _own_data(config: RunConfig, held: Path, device: torch.device) -> ClientData:
    """Return a node's own data; without a test part it holds some of its images out."""
    dataset = open_node_data(held, image_schema(config), config.intake)
    preparation = preparation_of(config.dataset)
    train, kept, validation = _own_rows(config, held, dataset.digest)

    def part(rows: Rows, augmented: bool = False) -> LocalData:
        images, labels, classes = dataset.train_images, dataset.train_labels, dataset.num_classes
        return LocalData.from_arrays(images, labels, rows, classes, device, augmented, preparation)

    tested = part(kept)
    if len(dataset.test_labels):
        tested = whole_test_part(dataset, device, preparation)
    return ClientData(
        part(train, config.augment),
        tested,
        dataset.digest,
        dataset.report,
        part(validation) if len(validation) else None,
    )


@lru_cache(maxsize=1)
def _own_rows(config: RunConfig, held: Path, digest: str) -> tuple[Rows, Rows, Rows]:
    """Return the rows a node trains on, holds out, and keeps for validation; once for a digest.

    A node that has nothing to evaluate on is never asked to, and so keeps nothing to choose by.
    """
    dataset = open_node_data(held, image_schema(config), config.intake)
    train, kept = np.arange(len(dataset.train_labels)), np.empty(0, np.int64)
    if not len(dataset.test_labels):  # with a test part all the others may be trained on
        train, kept = _divide(config, dataset, train)
    if not config.nodes_validate or not (len(kept) or len(dataset.test_labels)):
        return train, kept, np.empty(0, np.int64)
    validation = draw_fraction(config, dataset, train)
    return np.setdiff1d(train, validation), kept, validation


def whole_test_part(
    dataset: ImageDataset, device: torch.device, preparation: Preparation
) -> LocalData:
    """Return a data set's test part, for evaluation."""
    rows = np.arange(len(dataset.test_labels))
    images, labels = dataset.test_images, dataset.test_labels
    return LocalData.from_arrays(
        images, labels, rows, dataset.num_classes, device, preparation=preparation
    )


def validation_part(config: RunConfig, dataset: ImageDataset, device: torch.device) -> LocalData:
    """Return the images of the training part that no client trains on, for evaluation."""
    return LocalData.from_arrays(
        dataset.train_images,
        dataset.train_labels,
        validation_rows(config),
        dataset.num_classes,
        device,
        preparation=preparation_of(config.dataset),
    )


def _divide(config: RunConfig, dataset: ImageDataset, rows: Rows) -> tuple[Rows, Rows]:
    """Divide a client's rows into those to train on and those held out for its evaluation.

    Where patients are known, the whole training part is divided, so that no client evaluates on
    images of a patient whom another one trains on.
    """
    if not config.clients_evaluate:
        return rows, rows[:0]
    whole = dataset.held_out_patients
    marked = held_out(dataset.train_labels[rows]) if whole is None else whole[rows]
    return rows[~marked], rows[marked]
