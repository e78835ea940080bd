"""Image classifiers, each a feature extractor and one or more heads.

`build_classifier` is the only way to make one: it draws the weights from the run's seed in a fixed
order (extractor, then heads), so every method of one seed starts from the same extractor and the
same first head, however many heads it adds.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from fedadb_app.config import RunConfig
from fedadb_app.data.arrays import ImageSchema
from fedadb_app.data.preparation import CENTRED, Preparation
from fedadb_app.data.registry import DATASETS, preparation_of
from fedadb_app.errors import ConfigError
from fedadb_app.models.net_input import NetInput
from fedadb_app.models.norm import NormPolicy
from fedadb_app.models.registry import find_model
from fedadb_app.own_code import in_one_line
from fedadb_app.randomness import torch_generator

StateDict = dict[str, Tensor]


@dataclass(frozen=True)
class ModelSpec:
    """What determines an architecture.

    Attributes
    ----------
    name : str
        A name of `MODELS`.
    norm : {"batch", "batch-local", "group"}
        Normalisation layers; of no effect on a model that has none.
    image_shape : tuple[int, int, int]
        Channels, height, width.
    num_classes : int
        C.
    preparation : Preparation
        How images become model input; a net of a library undoes it for its own.
    """

    name: str
    norm: NormPolicy
    image_shape: tuple[int, int, int]
    num_classes: int
    preparation: Preparation = CENTRED

    @classmethod
    def of(cls, config: RunConfig, schema: ImageSchema) -> "ModelSpec":
        """Return what a run's configuration and its images ask for."""
        return cls._of(config, schema.image_shape, schema.num_classes)

    @classmethod
    def expected(cls, config: RunConfig) -> "ModelSpec | None":
        """Return what `of` will, where the images are known before any file is opened."""
        if config.own_data:
            return cls._of(config, config.image_size, len(config.class_names))
        dataset = DATASETS.find(config.dataset)
        if dataset.image_shape is None or dataset.num_classes is None:
            return None
        return cls._of(config, dataset.image_shape, dataset.num_classes)

    @classmethod
    def _of(
        cls, config: RunConfig, image_shape: tuple[int, int, int], num_classes: int
    ) -> "ModelSpec":
        preparation = preparation_of(config.dataset)
        return cls(config.model, config.norm, image_shape, num_classes, preparation)

    @property
    def architecture(self) -> str:
        """The extractor's own name, with ``auto`` resolved."""
        return find_model(self.name, self.image_shape)[0]

    @property
    def seen_sides(self) -> tuple[int, int]:
        """Height and width at which the net sees the images, resized by itself if need be."""
        expected = find_model(self.name, self.image_shape)[1].expected
        return self.image_shape[1:] if expected is None else expected.sides_of(self.image_shape)


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

    def state_copy(self) -> StateDict:
        """Return a copy of its weights and buffers, on the CPU."""
        return {name: t.detach().cpu().clone() for name, t in self.state_dict().items()}

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
        For an unknown model, or one that cannot be built for such images or so many classes.
    """
    with torch.random.fork_rng(devices=[]):
        # The CPU's generator alone: torch.manual_seed would reseed CUDA's too, for good.
        torch.default_generator.manual_seed(torch_generator(seed, "weights").initial_seed())
        return _build(spec, build_heads)


def _build(spec: ModelSpec, build_heads: HeadBuilder) -> ImageClassifier:
    _, model = find_model(spec.name, spec.image_shape)
    features = model.build(spec.image_shape, spec.num_classes, spec.norm)
    if model.expected is not None:
        seen = NetInput(model.expected, spec.preparation, spec.image_shape)
        features = nn.Sequential(OrderedDict(input=seen, net=features))
    heads = build_heads(feature_size(features, spec), spec)
    return ImageClassifier(features, heads, model.evaluation_batch)


def feature_size(features: nn.Module, spec: ModelSpec) -> int:
    """Return d, found by passing one blank image through the extractor.

    Raises
    ------
    ConfigError
        If that fails, or does not give one row of features.
    """
    was_training = features.training
    shape = "x".join(map(str, spec.image_shape))
    try:
        with torch.no_grad():
            found = features.eval()(torch.zeros(1, *spec.image_shape))
    except (RuntimeError, ValueError, TypeError, AssertionError, IndexError) as error:
        raise ConfigError(
            f'model="{spec.name}" cannot take images of {shape}: {in_one_line(error)}'
        ) from error
    if not isinstance(found, Tensor) or found.shape[:-1] != (1,):
        given = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(
            f'model="{spec.name}" gives {given} of one image of {shape}: expected (1, d), '
            f"a row of features"
        )
    features.train(was_training)
    return int(found.shape[1])


@dataclass(frozen=True)
class ModelFacts:
    """What of a model a run's other values can exclude.

    Attributes
    ----------
    feature_size : int
        d.
    batch_statistics : bool
        Whether a sample's output in training depends on the rest of its batch.
    buffers : tuple[str, ...]
        What its state holds beside trained parameters, by name: statistics of the samples that it
        was trained on.
    smallest_batch : int
        With how many samples it can train: 1, or 2 where a normalisation layer sees one value of
        each channel and sample. Evaluation needs as many with ``norm="batch-local"``.
    state : StateDict
        Its tensors without their values: names, shapes and types.
    """

    feature_size: int
    batch_statistics: bool
    buffers: tuple[str, ...]
    smallest_batch: int
    state: StateDict


@lru_cache(maxsize=4)
def model_facts(spec: ModelSpec, build_heads: HeadBuilder = single_head) -> ModelFacts:
    """Return what is true of a model, found in milliseconds: no weight is drawn or multiplied.

    Raises
    ------
    ConfigError
        If it cannot be built for such images or so many classes.
    """
    with torch.device("meta"):
        model = _build(spec, build_heads)
        smallest = 1
        try:
            for head in model.heads.values():
                head(model.features(torch.zeros(1, *spec.image_shape)))
        except ValueError:  # PyTorch's batch normalisation, of a single value per channel
            smallest = 2
        size = feature_size(model.features, spec)
    state = model.state_dict()
    buffers = sorted(state.keys() - set(model.parameter_names()))
    return ModelFacts(size, model.has_batch_statistics(), tuple(buffers), smallest, state)
