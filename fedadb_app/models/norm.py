"""Normalisation layers by policy."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from torch import Tensor, nn

NormPolicy = Literal["batch", "batch-local", "group"]

_BatchNorm = nn.modules.batchnorm._BatchNorm


def make_norm(policy: NormPolicy, channels: int) -> nn.Module:
    """Return the layer that normalises `channels` feature maps.

    ``batch`` keeps running statistics; ``batch-local``, the lineage's choice, uses the statistics
    of the batch at hand in training and evaluation alike; ``group`` (two groups, as in the FedEXP
    and FedACG code) looks at each sample alone.
    """
    if policy == "group":
        return nn.GroupNorm(_groups(channels), channels)
    return nn.BatchNorm2d(channels, track_running_stats=policy == "batch")


def _groups(channels: int) -> int:
    return 2 if channels % 2 == 0 else 1


def obey_norm(net: nn.Module, policy: NormPolicy) -> None:
    """Make every batch normalisation of a finished net what a policy says, in place.

    ``batch`` leaves them; epsilon, momentum and the trained scale and shift stay in any case, and
    so do layers of other kinds (LayerNorm).
    """
    for module in list(net.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, _BatchNorm) and policy == "group":
                setattr(module, name, _grouped(child))
            elif isinstance(child, _BatchNorm) and policy == "batch-local":
                child.track_running_stats = False
                child.running_mean = child.running_var = child.num_batches_tracked = None


def _grouped(layer: _BatchNorm) -> nn.GroupNorm:
    channels = layer.num_features
    goes_on = hasattr(layer, "act")  # a layer of timm may have an activation in it
    kind = _GroupNormThen if goes_on else nn.GroupNorm
    made = kind(_groups(channels), channels, eps=layer.eps, affine=layer.affine)
    if isinstance(made, _GroupNormThen):
        made.then = nn.Sequential(layer.get_submodule("drop"), layer.get_submodule("act"))
    return made.train(layer.training)


class _GroupNormThen(nn.GroupNorm):
    """Group normalisation and what followed in the layer that it replaces."""

    then: nn.Sequential

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.then(super().forward(input))
        return output


def normalisation_tensors(net: nn.Module) -> tuple[str, ...]:
    """Name what a net's state holds of normalisation layers: scale, shift, running statistics."""
    kinds = (_BatchNorm, nn.GroupNorm, nn.LayerNorm)
    return tuple(
        f"{name}.{tensor}"
        for name, module in net.named_modules()
        if isinstance(module, kinds)
        for tensor in module.state_dict()
    )


@contextmanager
def frozen_running_statistics(model: nn.Module) -> Iterator[None]:
    """Leave running statistics as they are, for the second pass of a two-pass step."""
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm)]
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
