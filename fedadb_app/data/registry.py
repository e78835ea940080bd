"""The data sets and the rules that deal them to clients, by name: one line each."""

from fedadb_app.data.dataset import Dataset
from fedadb_app.data.datasets import (
    digits,
    medmnist_flags,
    own_function,
    paths,
    styles,
    torchvision_files,
    unpacked,
)
from fedadb_app.data.partition import Rule
from fedadb_app.data.preparation import CENTRED, Preparation
from fedadb_app.data.rules import classes, dirichlet, domain, iid, natural, quantity
from fedadb_app.registry import Registry

DATASETS: Registry[Dataset] = Registry(
    "dataset",
    {
        "digits": digits.DATASET,
        "svhn": torchvision_files.SVHN,
        "cifar10": torchvision_files.CIFAR10,
        "cifar100": torchvision_files.CIFAR100,
        "cinic10": unpacked.CINIC10,
        "pacs": unpacked.pacs(224),  # InceptionV1's own size
        "pacs_64": unpacked.pacs(64),
        "pacs_128": unpacked.pacs(128),
        styles.STYLED: styles.DATASET,
        "nodes": Dataset("the nodes' own images", "", locate=None),
    },
    families=(paths.FAMILY, medmnist_flags.FAMILY, own_function.FAMILY),
)

PARTITIONS: Registry[Rule] = Registry(
    "partition",
    {
        "dirichlet": dirichlet.RULE,
        "iid": iid.RULE,
        "domain": domain.RULE,
        "classes": classes.RULE,
        "quantity": quantity.RULE,
        "natural": natural.RULE,
    },
)


def preparation_of(dataset: str) -> Preparation:
    """Return what holds for all images of a run whose configuration names this data set.

    That includes a node's own images: what they are normalised by must be the server's. A name
    that is not known (any more), as in the folder of an old run, has no preparation of its own.
    """
    entry = DATASETS.get(dataset)
    return CENTRED if entry is None else entry.preparation
