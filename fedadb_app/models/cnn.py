"""The two-convolution network of FedNTD, FedLMD and FedSOL."""

from torch import nn

from fedadb_app.models.model import Model
from fedadb_app.models.norm import NormPolicy


def cnn_features(image_shape: tuple[int, int, int], norm: NormPolicy) -> nn.Module:
    """Return two padded 5x5 convolutions (32 and 64 maps) and 512 features."""
    del norm  # this network has no normalisation layer
    channels, height, width = image_shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
    )


MODEL = Model("CNN", "Lee et al., NeurIPS 2022 (FedNTD)", cnn_features, evaluation_batch=128)
