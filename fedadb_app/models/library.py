"""What nets of torchvision and timm share when they become a federation's feature extractor."""

from torch import Tensor, nn

from fedadb_app.models.norm import NormPolicy, obey_norm

CLASSIFIERS = ("fc", "classifier", "heads", "head")
"""Where nets keep their classifier: ResNet, ShuffleNet; ConvNeXt, DenseNet, EfficientNet,
MobileNet, VGG; ViT; Swin."""

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""What batch normalisation keeps beside what is trained."""


def as_features(net: nn.Module, norm: NormPolicy) -> nn.Module:
    """Make a library's net, whose classifier is gone, what every extractor here is; in place.

    Nothing is drawn in training (a run's random numbers come from its own streams): dropout and
    stochastic depth let everything pass. Normalisation follows `norm`. A table of constants, such
    as the positions within a window of Swin, is not part of the state: it is neither averaged nor
    sent.
    """
    obey_norm(net, norm)
    for module in net.modules():
        for name in ("p", "drop_prob"):  # of PyTorch's dropout and torchvision's, and of timm's
            if type(getattr(module, name, None)) is float:
                setattr(module, name, 0.0)
        for name, buffer in list(module.named_buffers(recurse=False)):
            if name not in STATISTICS:
                module.register_buffer(name, buffer, persistent=False)
    return net


def is_constant(name: str, value: Tensor) -> bool:
    """Whether a published file's tensor is such a table of constants."""
    return not value.is_floating_point() and not name.endswith(STATISTICS)
