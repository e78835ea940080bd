"""What residual networks for small images share (He et al., 2016, with the lineage's stem)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedadb_app.models.norm import NormPolicy, make_norm


class ChannelsLastConv(nn.Conv2d):
    """A convolution whose maps, and all maps computed from them, keep a pixel's channels together.

    A fifth faster in training on CPUs, with bfloat16 too; parameters stay as they are.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Return the feature maps."""
        return super().forward(maps.contiguous(memory_format=torch.channels_last))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut; ReLU after the addition."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: NormPolicy) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            make_norm(norm, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            make_norm(norm, outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), make_norm(norm, outputs)
            )

    def forward(self, maps: Tensor) -> Tensor:
        """Return the block's feature maps."""
        return F.relu(self.residual(maps) + self.shortcut(maps))


def residual_features(
    channels: int, norm: NormPolicy, stages: Sequence[tuple[int, int]]
) -> nn.Sequential:
    """Return a residual network for small images up to its pooled features.

    A 3x3 stem of stride 1 without max-pooling, then the stages; each but the first halves the map.

    Parameters
    ----------
    channels : int
        Of an image.
    norm : {"batch", "batch-local", "group"}
        Normalisation layers.
    stages : Sequence[tuple[int, int]]
        How many channels and basic blocks each has; the last one's channels are d.
    """
    width = stages[0][0]
    blocks: list[nn.Module] = []
    inputs = width
    for position, (outputs, count) in enumerate(stages):
        for block in range(count):
            stride = 2 if position > 0 and block == 0 else 1
            blocks.append(BasicBlock(inputs, outputs, stride, norm))
            inputs = outputs
    return nn.Sequential(
        ChannelsLastConv(channels, width, 3, padding=1, bias=False),
        make_norm(norm, width),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
