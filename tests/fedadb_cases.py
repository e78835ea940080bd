"""A small model, client and server half of FedADB, for its tests."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedadb_app.config import RunConfig
from fedadb_app.data.arrays import ImageSchema
from fedadb_app.data.batches import LocalData
from fedadb_app.data.preparation import CENTRED
from fedadb_app.local_training import Attachment, LocalTask
from fedadb_app.models.classifier import ImageClassifier, ModelSpec, build_classifier
from strategies.fedadb import METHOD, FedADB, FedADBParams, FedADBTrainer
from strategies.registry import fedavg
from strategies.server import RoundInputs, Workbench

CLASSES, SHAPE = 4, (1, 16, 16)
CPU = torch.device("cpu")
OFF = FedADBParams(use_anchors=False, use_lcb=False, sampling="natural")
LENET = ModelSpec("lenet", "batch", SHAPE, CLASSES)
RESNET = ModelSpec("resnet18", "batch", (3, 16, 16), CLASSES)


def config(**values: Any) -> RunConfig:
    return RunConfig(**{"local_epochs": 2, "batch_size": 8, "weight_decay": 1e-2, **values})


def local_data(
    labels: list[int], shape: tuple[int, int, int] = SHAPE, flip: bool = False
) -> LocalData:
    rng = np.random.default_rng(len(labels))
    images = rng.integers(0, 256, (len(labels), *shape), dtype=np.uint8)
    array = np.array(labels, np.int64)
    return LocalData.from_arrays(images, array, np.arange(len(labels)), CLASSES, CPU, flip)


TWO_CLASSES = [0] * 14 + [2] * 5
ALL_CLASSES = [0, 1, 2, 3] * 4


def task(
    data: LocalData,
    attachments: Mapping[str, Attachment] | None = None,
    server_round: int = 1,
    num_rounds: int = 10,
    **values: Any,
) -> LocalTask:
    return LocalTask(0, server_round, num_rounds, 0.05, config(**values), data, attachments or {})


def dual(spec: ModelSpec = LENET) -> ImageClassifier:
    return build_classifier(spec, 0, METHOD.heads)


def single(spec: ModelSpec = LENET) -> ImageClassifier:
    return build_classifier(spec, 0, fedavg.METHOD.heads)


def server(model: ImageClassifier, params: FedADBParams, seed: int = 0) -> FedADB:
    schema = ImageSchema(tuple(map(str, range(CLASSES))), SHAPE)
    return METHOD.server.of_run(params, Workbench(model, schema, CENTRED.valid_range, seed))


def told(model: Mapping[str, Tensor], t: int = 1) -> RoundInputs:
    return RoundInputs(t, 10, 0.99, 2, 10.0, dict(model), dual().parameter_names())


def anchors(quality: float = 0.8) -> dict[str, Attachment]:
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "images": torch.rand(CLASSES, *SHAPE, generator=generator) * 2 - 1,
        "labels": torch.arange(CLASSES),
        "confidences": torch.tensor([0.9, 0.7, 0.8, 0.8]),
    }
    return {"anchors": Attachment(tensors, {"quality": quality})}


def as_fedadb(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.replace("heads.head", "heads.agb"): tensor for name, tensor in state.items()}


def begun(params: FedADBParams, job: LocalTask) -> FedADBTrainer:
    trainer = FedADBTrainer(dual(), job, params)
    trainer.begin()
    return trainer


FEW = FedADBParams(anchors_per_class=2, anchor_steps=3)
