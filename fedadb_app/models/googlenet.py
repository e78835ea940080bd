"""InceptionV1 (Szegedy et al., 2015), the paper's model for PACS."""

from torch import nn

from fedadb_app.errors import ConfigError
from fedadb_app.models.model import Model
from fedadb_app.models.norm import NormPolicy, make_norm

_SMALLEST_SIDE = 64  # below, the last map is a single pixel, and a batch of one has no statistics


def googlenet_features(image_shape: tuple[int, int, int], norm: NormPolicy) -> nn.Module:
    """Return torchvision's GoogLeNet up to its 1024 features; 5 599 904 parameters in RGB.

    Without the auxiliary classifiers, the classifier and its dropout. The normalisation layers,
    which the original lacks, are this app's, as in the other models.

    Raises
    ------
    ConfigError
        For images of less than 64 pixels a side.
    """
    from torchvision.models import GoogLeNet
    from torchvision.models.googlenet import BasicConv2d

    channels, *sides = image_shape
    if min(sides) < _SMALLEST_SIDE:
        raise ConfigError(
            f'model="googlenet" halves an image five times and needs {_SMALLEST_SIDE} pixels a '
            f"side; these are {sides[0]}x{sides[1]}: use another model, or larger images"
        )
    whole = GoogLeNet(aux_logits=False, init_weights=False)
    if channels != 3:
        whole.conv1.conv = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    for block in whole.modules():
        if isinstance(block, BasicConv2d):
            block.bn = make_norm(norm, block.bn.num_features)
    *trunk, _dropout, _classifier = whole.children()
    return nn.Sequential(*trunk, nn.Flatten())


MODEL = Model("InceptionV1", "Szegedy et al., CVPR 2015", googlenet_features, evaluation_batch=64)
