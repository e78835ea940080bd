"""Nets and settings that the tests of the anchors share."""

import torch

from fedadb_app.anchors import AnchorSettings, ClassAnchors, generate_anchors
from fedadb_app.data.preparation import CENTRED
from fedadb_app.models.classifier import ImageClassifier, ModelSpec, build_classifier

GREY, RGB = (1, 16, 16), (3, 16, 16)
CLASSES = 4


def lenet(shape: tuple[int, int, int] = GREY, classes: int = CLASSES) -> ImageClassifier:
    """A LeNet with twice its initial weights: with opinions, as after some training."""
    model = build_classifier(ModelSpec("lenet", "batch", shape, classes), seed=7)
    for parameter in model.parameters():
        parameter.data.mul_(2)
    return model


def resnet(norm: str) -> ImageClassifier:
    return build_classifier(ModelSpec("resnet18", norm, RGB, CLASSES), seed=7)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def generate(
    model: ImageClassifier,
    settings: AnchorSettings,
    shape: tuple[int, int, int] = GREY,
    classes: int = CLASSES,
    seed: int = 0,
) -> ClassAnchors:
    return generate_anchors(model, classes, shape, CENTRED.valid_range, settings, seeded(seed))
