"""What the registry knows of a model."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from fedadb_app.models.net_input import Expected
from fedadb_app.models.norm import NormPolicy


@dataclass(frozen=True)
class Model:
    """A registered feature extractor.

    Attributes
    ----------
    title : str
        As papers write it.
    paper : str
        Authors, venue and year.
    features : Callable
        (image shape, normalisation) -> ``(B, channels, height, width)`` to ``(B, d)``. Raises
        `ConfigError` for images it cannot take.
    evaluation_batch : int
        How many images to evaluate at a time; the fastest on a CPU: beyond it, feature maps leave
        its cache (docs/performance.md).
    expected : Expected or None
        What is done to images before `features`, which then takes three channels of the expected
        size; None = nothing, it takes them as the data set prepares them.
    told_classes : bool
        Whether `features` is given the number of classes between the two: a user's own net.
    """

    title: str
    paper: str
    features: Callable[..., nn.Module]
    evaluation_batch: int = 128
    expected: Expected | None = None
    told_classes: bool = False

    def build(
        self, image_shape: tuple[int, int, int], num_classes: int, norm: NormPolicy
    ) -> nn.Module:
        """Return the extractor, without what is done to images before it."""
        if self.told_classes:
            return self.features(image_shape, num_classes, norm)
        return self.features(image_shape, norm)


@dataclass(frozen=True)
class Choice:
    """A name that stands for another model, depending on the images.

    Attributes
    ----------
    title, paper : str
        As for a `Model`.
    model_for : Callable
        Image shape (channels, height, width) -> the name of a model.
    """

    title: str
    paper: str
    model_for: Callable[[tuple[int, int, int]], str]
