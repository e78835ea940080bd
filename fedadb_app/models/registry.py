"""The models by name. A model is one file here and one line below."""

from fedadb_app.models import (
    cnn,
    googlenet,
    lenet,
    own_nets,
    resnet8,
    resnet18,
    timm_nets,
    torchvision_nets,
)
from fedadb_app.models.model import Choice, Model
from fedadb_app.registry import Registry


def _of_the_paper(image_shape: tuple[int, int, int]) -> str:
    return "lenet" if image_shape[0] == 1 else "resnet18"


MODELS: Registry[Model | Choice] = Registry(
    "model",
    {
        "auto": Choice(
            "LeNet for grey images, ResNet-18 otherwise",
            "FedADB (Liu et al., 2026), section 5.1",
            _of_the_paper,
        ),
        "lenet": lenet.MODEL,
        "cnn": cnn.MODEL,
        "resnet8": resnet8.MODEL,
        "resnet18": resnet18.MODEL,
        "googlenet": googlenet.MODEL,
    },
    families=(torchvision_nets.FAMILY, timm_nets.FAMILY, own_nets.FAMILY),
)


def find_model(name: str, image_shape: tuple[int, int, int]) -> tuple[str, Model]:
    """Return the model that a name stands for with such images, and that model's own name.

    Raises
    ------
    ConfigError
        For an unknown name.
    """
    entry = MODELS.find(name)
    return (
        (name, entry)
        if isinstance(entry, Model)
        else find_model(entry.model_for(image_shape), image_shape)
    )
