"""ResNet-18 for small images (He et al., 2016, with the lineage's stem)."""

from torch import nn

from fedadb_app.models.model import Model
from fedadb_app.models.norm import NormPolicy
from fedadb_app.models.resnet import residual_features


def resnet18_features(image_shape: tuple[int, int, int], norm: NormPolicy) -> nn.Module:
    """Return ResNet-18 up to its 512 features; 11 173 962 parameters with 10 classes in RGB.

    A 32x32 or 28x28 image ends as a 4x4 map.
    """
    return residual_features(image_shape[0], norm, ((64, 2), (128, 2), (256, 2), (512, 2)))


MODEL = Model("ResNet-18", "He et al., CVPR 2016", resnet18_features, evaluation_batch=128)
