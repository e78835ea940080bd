"""Nets of torchvision's classification models, by ``torchvision:<name>``."""

from collections.abc import Iterable
from functools import lru_cache, partial

from torch import nn

from fedadb_app.models.library import CLASSIFIERS, as_features
from fedadb_app.models.model import Choice, Model
from fedadb_app.models.net_input import Expected
from fedadb_app.models.norm import NormPolicy
from fedadb_app.registry import Family

PREFIX = "torchvision:"

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's, by which all published weights of torchvision's classifiers are trained."""

_OF_ONE_SIZE = ("vit_", "maxvit_")
"""Families whose positions are learnt for 224x224."""

_LEFT_OUT = ("googlenet", "inception_", "squeezenet", "regnet_")
"""Families that have a second classifier while they train, none that is linear, or widths that
cannot be computed without drawing weights."""


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """Return the nets that can be used, without the prefix."""
    from torchvision import models

    listed = models.list_models(module=models)
    return tuple(name for name in listed if not name.startswith(_LEFT_OUT))


def torchvision_features(
    name: str, image_shape: tuple[int, int, int], norm: NormPolicy
) -> nn.Module:
    """Return a net up to what its last linear layer takes, which is left out."""
    from torchvision import models

    del image_shape  # images of every size and colour become the net's own beforehand
    net: nn.Module = models.get_model(name, weights=None)
    _drop_classifier(net)
    return as_features(net, norm)


def _drop_classifier(net: nn.Module) -> None:
    """Put nothing in the place of the last linear layer; a norm before it (ConvNeXt) stays."""
    for place in CLASSIFIERS:
        part = getattr(net, place, None)
        if isinstance(part, nn.Linear):
            setattr(net, place, nn.Identity())
            return
        if isinstance(part, nn.Sequential) and isinstance(part[-1], nn.Linear):
            part[-1] = nn.Identity()
            return
    raise AssertionError(f"{type(net).__name__} has no linear classifier in {CLASSIFIERS}")


def _find(name: str) -> Model | None:
    net = name.removeprefix(PREFIX)
    if net == name or net not in names():
        return None
    sides = (224, 224) if net.startswith(_OF_ONE_SIZE) else None
    return Model(
        title=f"{net} of torchvision",
        paper="torchvision.models",
        features=partial(torchvision_features, net),
        evaluation_batch=32,
        expected=Expected(MEAN, STD, sides),
    )


def _examples() -> Iterable[str]:
    return (PREFIX + name for name in names())


FAMILY: Family[Model | Choice] = Family(
    'a net of torchvision such as "torchvision:resnet50"', _find, _examples
)
