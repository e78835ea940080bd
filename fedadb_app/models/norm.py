"""Normalisation layers by policy."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from torch import nn

NormPolicy = Literal["batch", "batch-local", "group"]


def make_norm(policy: NormPolicy, channels: int) -> nn.Module:
    """Return the layer that normalises `channels` feature maps.

    ``batch`` keeps running statistics; ``batch-local``, the lineage's choice, uses the statistics
    of the batch at hand in training and evaluation alike; ``group`` (two groups, as in the FedEXP
    and FedACG code) looks at each sample alone.
    """
    if policy == "group":
        return nn.GroupNorm(2, channels)
    return nn.BatchNorm2d(channels, track_running_stats=policy == "batch")


@contextmanager
def frozen_running_statistics(model: nn.Module) -> Iterator[None]:
    """Leave running statistics as they are, for the second pass of a two-pass step."""
    layers = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    before = [(m.momentum, m.num_batches_tracked) for m in layers]
    for layer in layers:
        layer.momentum = 0.0
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked = layer.num_batches_tracked.clone()
    try:
        yield
    finally:
        for layer, (momentum, tracked) in zip(layers, before, strict=True):
            layer.momentum, layer.num_batches_tracked = momentum, tracked
