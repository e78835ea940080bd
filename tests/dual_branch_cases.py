"""Clients, anchors and nets with two heads that the tests of the dual branch share."""

import math

import numpy as np
import torch
from torch import Tensor

from fedadb_app.anchors import ClassAnchors
from fedadb_app.data.batches import LocalData
from fedadb_app.dual_branch import (
    MixedPool,
)

CLASSES = 5
SHAPE = (1, 16, 16)
LABELS = [3, 0, 0, 1, 0, 3, 0, 0, 1, 0]  # classes 2 and 4 are missing
CPU = torch.device("cpu")


def local_data(
    labels: list[int] = LABELS,
    shape: tuple[int, int, int] = SHAPE,
    flip: bool = False,
    classes: int = CLASSES,
) -> LocalData:
    """A client that holds every second row of a shared array."""
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (2 * len(labels), *shape), dtype=np.uint8)
    everyone = np.repeat(np.array(labels, np.int64), 2)
    positions = np.arange(len(labels), dtype=np.int64) * 2 + 1
    return LocalData.from_arrays(images, everyone, positions, classes, CPU, flip)


def class_anchors(shape: tuple[int, int, int] = SHAPE, confidence: float | None = None):
    generator = torch.Generator().manual_seed(11)
    images = torch.rand(CLASSES, *shape, generator=generator) * 2 - 1
    confidences = torch.tensor([0.9, 0.35, 0.8, 0.6, 1.0])
    if confidence is not None:
        confidences = torch.full((CLASSES,), confidence)
    return ClassAnchors(images, torch.arange(CLASSES), confidences, float(confidences.mean()))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def within_4_sigma(count: int, draws: int, probability: float) -> bool:
    sigma = math.sqrt(draws * probability * (1 - probability))
    return abs(count - draws * probability) <= 4 * sigma


def pixels(pool: MixedPool, position: int) -> Tensor:
    """The model input at a position, from the raw bytes."""
    local = pool.local
    if position >= len(local):
        return pool.anchor_images[position - len(local)]
    return (local.images[local.positions[position]].float() / 255 - 0.5) / 0.5
