"""Nets of timm, by ``timm:<name>``; timm is an extra (``pip install "fedadb-app[timm]"``)."""

from collections.abc import Iterable
from functools import partial
from types import ModuleType
from typing import Literal

from torch import nn

from fedadb_app.errors import ConfigError
from fedadb_app.models.library import as_features
from fedadb_app.models.model import Choice, Model
from fedadb_app.models.net_input import Expected
from fedadb_app.models.norm import NormPolicy
from fedadb_app.registry import Family

PREFIX = "timm:"


def _timm(name: str) -> ModuleType:
    try:
        import timm
    except ImportError as error:
        raise ConfigError(
            f'model="{name}" needs timm, which this machine lacks: '
            f'pip install "fedadb-app[timm]", on the server and on every node'
        ) from error
    module: ModuleType = timm
    return module


def timm_features(name: str, image_shape: tuple[int, int, int], norm: NormPolicy) -> nn.Module:
    """Return a net up to its pooled features, which timm gives where no classes are asked for.

    Raises
    ------
    ConfigError
        Without timm, or for a net that cannot be built before its weights are drawn.
    """
    del image_shape  # images of every size and colour become the net's own beforehand
    timm = _timm(PREFIX + name)
    try:
        net: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
    except (NotImplementedError, RuntimeError, ImportError) as error:
        raise ConfigError(f'model="{PREFIX}{name}" cannot be used here: {error}') from error
    return as_features(net, norm)


def _find(name: str) -> Model | None:
    net = name.removeprefix(PREFIX)
    if net == name:
        return None
    timm = _timm(name)
    if not timm.is_model(net):
        return None
    return Model(
        title=f"{net} of timm",
        paper="Wightman, PyTorch Image Models, 2019",
        features=partial(timm_features, net),
        evaluation_batch=32,
        expected=_expected(timm.get_pretrained_cfg(net)),
    )


def _expected(published: object) -> Expected:
    """Return what a net's published weights expect, of timm's ``PretrainedCfg``."""
    _, height, width = published.input_size  # type: ignore[attr-defined]
    bicubic = published.interpolation == "bicubic"  # type: ignore[attr-defined]
    mode: Literal["bilinear", "bicubic"] = "bicubic" if bicubic else "bilinear"
    return Expected(
        mean=published.mean,  # type: ignore[attr-defined]
        std=published.std,  # type: ignore[attr-defined]
        sides=(height, width) if published.fixed_input_size else None,  # type: ignore[attr-defined]
        interpolation=mode,
    )


def _examples() -> Iterable[str]:
    try:
        timm = _timm(PREFIX)
    except ConfigError:  # where it is not there, no name is meant
        return ()
    return (PREFIX + name for name in timm.list_models())


FAMILY: Family[Model | Choice] = Family(
    'a net of timm (an extra) such as "timm:resnet18"', _find, _examples
)
