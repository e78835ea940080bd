"""A net of a user's own, by ``package.module:function``; docs/add-a-model.md."""

from functools import partial

from torch import nn

from fedadb_app.errors import ConfigError, FedADBError
from fedadb_app.models.model import Choice, Model
from fedadb_app.models.norm import NormPolicy, obey_norm
from fedadb_app.own_code import FORM, in_one_line, is_own, own_function
from fedadb_app.registry import Family


def own_features(
    name: str, image_shape: tuple[int, int, int], num_classes: int, norm: NormPolicy
) -> nn.Module:
    """Call the function; batch normalisation that it leaves in follows `norm` all the same.

    Raises
    ------
    ConfigError
        If it is not there, fails, gives something else than a module, or one with dropout.
    """
    make = own_function("model", name)
    try:
        net = make(image_shape, num_classes, norm)
    except FedADBError:
        raise
    except Exception as error:
        raise ConfigError(f'model="{name}" failed: {in_one_line(error)}') from error
    if not isinstance(net, nn.Module):
        raise ConfigError(f'model="{name}" gave a {type(net).__name__}: expected a torch.nn.Module')
    for place, module in net.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise ConfigError(
                f'model="{name}" draws random numbers while it trains ({place} drops with '
                f"p={module.p:g}), and a run's have to follow from its seed: leave dropout out"
            )
    obey_norm(net, norm)
    return net


def _find(name: str) -> Model | None:
    if not is_own(name):
        return None
    return Model(f"{name} (own)", "", partial(own_features, name), told_classes=True)


FAMILY: Family[Model | Choice] = Family(FORM, _find)
