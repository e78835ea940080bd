"""Nets, data and a recording trainer that the tests of local training share."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from fedadb_app.config import RunConfig
from fedadb_app.data.batches import LocalData
from fedadb_app.local_training import (
    LocalTask,
)
from fedadb_app.models.classifier import ImageClassifier, ModelSpec, build_classifier

CPU = torch.device("cpu")
CLASSES = 3
TINY, SMALL = (1, 2, 2), (1, 16, 16)


def local_data(samples: int, shape: tuple[int, int, int] = TINY) -> LocalData:
    rng = np.random.default_rng(samples)
    images = rng.integers(0, 256, (samples, *shape), dtype=np.uint8)
    labels = rng.integers(0, CLASSES, samples, dtype=np.int64)
    return LocalData.from_arrays(images, labels, np.arange(samples), CLASSES, CPU)


def linear() -> ImageClassifier:
    torch.manual_seed(4)
    return ImageClassifier(nn.Flatten(), {"head": nn.Linear(4, CLASSES)})


def lenet() -> ImageClassifier:
    return build_classifier(ModelSpec("lenet", "batch", SMALL, CLASSES), seed=1)


def task(
    data: LocalData,
    server_round: int = 1,
    learning_rate: float = 0.1,
    client: int = 0,
    **values: float | int | str,
) -> LocalTask:
    return LocalTask(client, server_round, 10, learning_rate, RunConfig(**values), data)


def state_of(model: ImageClassifier) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def identical(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
