"""ResNet-8: a residual network so small that a laptop trains it in minutes (He et al., 2016).

CIFAR's ResNet-6n+2 with n = 1, but with a convolution on the shortcuts that change size.
"""

from torch import nn

from fedadb_app.models.model import Model
from fedadb_app.models.norm import NormPolicy
from fedadb_app.models.resnet import residual_features


def resnet8_features(image_shape: tuple[int, int, int], norm: NormPolicy) -> nn.Module:
    """Return three stages of one basic block and 64 features; 78 042 parameters with 10 classes.

    (In RGB, with the head.) A 32x32 image ends as an 8x8 map, a 28x28 one as 7x7.
    """
    return residual_features(image_shape[0], norm, ((16, 1), (32, 1), (64, 1)))


MODEL = Model("ResNet-8", "He et al., CVPR 2016", resnet8_features, evaluation_batch=128)
