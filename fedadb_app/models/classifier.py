"""Image classifiers, each a feature extractor and one or more heads.

`build_classifier` is the only way to make one: it draws the weights from the run's seed in a fixed
order (extractor, then heads), so every method of one seed starts from the same extractor and the
same first head, however many heads it adds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedadb_app.config import RunConfig
from fedadb_app.data.arrays import ImageSchema
from fedadb_app.models.cnn import cnn_features
from fedadb_app.models.googlenet import googlenet_features
from fedadb_app.models.lenet import lenet_features
from fedadb_app.models.norm import NormPolicy
from fedadb_app.models.resnet import resnet18_features
from fedadb_app.randomness import torch_generator

StateDict = dict[str, Tensor]


@dataclass(frozen=True)
class Architecture:
    """A feature extractor, and how many images it evaluates at a time.

    Attributes
    ----------
    features : Callable
        (image shape, normalisation) -> ``(B, channels, height, width)`` to ``(B, d)``.
    evaluation_batch : int
        The fastest on a CPU: beyond it, feature maps leave its cache (docs/performance.md).
    """

    features: Callable[[tuple[int, int, int], NormPolicy], nn.Module]
    evaluation_batch: int


ARCHITECTURES: Mapping[str, Architecture] = {
    "lenet": Architecture(lenet_features, 512),
    "cnn": Architecture(cnn_features, 128),
    "resnet18": Architecture(resnet18_features, 128),
    "googlenet": Architecture(googlenet_features, 64),
}


@dataclass(frozen=True)
class ModelSpec:
    """What determines an architecture.

    Attributes
    ----------
    name : str
        ``lenet``, ``cnn``, ``resnet18``, ``googlenet``, or ``auto``: the paper's rule (section
        5.1), LeNet for one channel and ResNet-18 otherwise.
    norm : {"batch", "batch-local", "group"}
        Normalisation layers; of no effect on ``lenet`` and ``cnn``, which have none.
    image_shape : tuple[int, int, int]
        Channels, height, width.
    num_classes : int
        C.
    """

    name: str
    norm: NormPolicy
    image_shape: tuple[int, int, int]
    num_classes: int

    @classmethod
    def of(cls, config: RunConfig, schema: ImageSchema) -> "ModelSpec":
        """Return what a run's configuration and its images ask for."""
        return cls(config.model, config.norm, schema.image_shape, schema.num_classes)

    @property
    def architecture(self) -> str:
        """The extractor's name, with ``auto`` resolved."""
        if self.name != "auto":
            return self.name
        return "lenet" if self.image_shape[0] == 1 else "resnet18"


HeadBuilder = Callable[[int, ModelSpec], Mapping[str, nn.Module]]
"""(feature size d, specification) -> the heads by name; the first is the one evaluated."""


def single_head(feature_size: int, spec: ModelSpec) -> Mapping[str, nn.Module]:
    """Return the usual single linear classifier."""
    return {"head": nn.Linear(feature_size, spec.num_classes)}


class ImageClassifier(nn.Module):
    """A feature extractor phi and heads psi on top of it.

    Attributes
    ----------
    features : nn.Module
        ``(B, channels, height, width)`` -> ``(B, d)``.
    heads : nn.ModuleDict
        Each ``(B, d)`` -> logits ``(B, C)``.
    evaluation_batch : int
        How many images to evaluate at a time.
    """

    def __init__(
        self, features: nn.Module, heads: Mapping[str, nn.Module], evaluation_batch: int = 512
    ) -> None:
        super().__init__()
        self.features = features
        self.heads = nn.ModuleDict(heads)
        self.evaluated_head = next(iter(heads))
        self.evaluation_batch = evaluation_batch

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of the evaluated head, ``(B, C)``."""
        logits: Tensor = self.heads[self.evaluated_head](self.features(images))
        return logits

    def has_batch_statistics(self) -> bool:
        """Whether a sample's output in training depends on the rest of its batch."""
        return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.modules())

    def parameter_names(self) -> tuple[str, ...]:
        """Names of the trained tensors, in order; the rest of the state are buffers.

        A set's order changes from process to process, and with it the last bits of a norm.
        """
        return tuple(name for name, _ in self.named_parameters())


def build_classifier(
    spec: ModelSpec, seed: int, build_heads: HeadBuilder = single_head
) -> ImageClassifier:
    """Build a model with PyTorch's default initialisation, drawn from (seed, "weights").

    Raises
    ------
    ConfigError
        If the images are too small for the architecture.
    KeyError
        If the architecture is unknown (the run configuration has checked it before).
    """
    with torch.random.fork_rng(devices=[]):
        # The CPU's generator alone: torch.manual_seed would reseed CUDA's too, for good.
        torch.default_generator.manual_seed(torch_generator(seed, "weights").initial_seed())
        architecture = ARCHITECTURES[spec.architecture]
        features = architecture.features(spec.image_shape, spec.norm)
        heads = build_heads(feature_size(features, spec), spec)
        return ImageClassifier(features, heads, architecture.evaluation_batch)


def feature_size(features: nn.Module, spec: ModelSpec) -> int:
    """Return d, found by passing one blank image through the extractor."""
    was_training = features.training
    with torch.no_grad():
        size = int(features.eval()(torch.zeros(1, *spec.image_shape)).shape[1])
    features.train(was_training)
    return size
