"""LeNet-5 with ReLU and max-pooling (LeCun et al., 1998)."""

from torch import nn

from fedadb_app.models.model import Model
from fedadb_app.models.norm import NormPolicy


def lenet_features(image_shape: tuple[int, int, int], norm: NormPolicy) -> nn.Module:
    """Return LeNet-5 up to its 84 features; 61 791 parameters with 11 classes at 28x28 grey.

    The first convolution is padded, so 28x28 images give the classic 400 inputs of the first
    linear layer; larger images give more.
    """
    del norm  # LeNet has no normalisation layer
    channels, height, width = image_shape
    rows, columns = ((side // 2 - 4) // 2 for side in (height, width))
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * rows * columns, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
    )


MODEL = Model("LeNet-5", "LeCun et al., Proc. IEEE 1998", lenet_features, evaluation_batch=512)
