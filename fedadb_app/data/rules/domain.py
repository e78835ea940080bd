"""Some classes of one domain to each client: feature shift with label-space mismatch."""

import numpy as np
import numpy.typing as npt

from fedadb_app.data.partition import MIN_SAMPLES, Partition, Rule, Samples
from fedadb_app.errors import ConfigError, DataError


def deal(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    classes_per_client: int,
    min_samples: int = MIN_SAMPLES,
) -> Partition:
    """Give every client some classes of one domain.

    The clients are divided evenly among the domains, in order. A random order of the classes is
    dealt to them in turn, over and over, so many to each. Clients of a domain that were dealt the
    same class share its samples evenly; a class of a domain that none of them was dealt is
    trained on by nobody.

    Parameters
    ----------
    samples : Samples
        Of several domains.
    num_clients : int
        K, at least the number of domains.
    rng : numpy.random.Generator
        The run's, for this purpose.
    classes_per_client : int
        At most C.
    min_samples : int
        Samples every client is guaranteed.

    Raises
    ------
    ConfigError
        If the samples come from one domain.
    DataError
        If there are too few clients or classes, or a client gets too few samples.
    """
    labels, domains = samples.labels, samples.domains
    if domains is None:
        raise ConfigError(
            f'partition="domain" needs a data set whose images come from several domains: "pacs" '
            f'or "pathmnist-styles"; dataset="{samples.dataset}" has none'
        )
    num_domains, num_classes = int(domains.max()) + 1, int(labels.max()) + 1
    if num_clients < num_domains:
        raise DataError(
            f'partition="domain" needs a client for each of the {num_domains} domains; there are '
            f"{num_clients}"
        )
    if classes_per_client > num_classes:
        raise DataError(
            f"classes-per-client={classes_per_client}, but the data set has {num_classes} classes"
        )
    turns = np.arange(num_clients * classes_per_client).reshape(num_clients, -1)
    dealt = rng.permutation(num_classes)[turns % num_classes]
    shares: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(num_clients)]
    for domain, clients in enumerate(np.array_split(np.arange(num_clients), num_domains)):
        for label in np.unique(dealt[clients]):
            holders = clients[(dealt[clients] == label).any(axis=1)]
            held = rng.permutation(np.flatnonzero((domains == domain) & (labels == label)))
            for client, share in zip(holders, np.array_split(held, len(holders)), strict=True):
                shares[client].append(share)
    parts = tuple(rng.permutation(np.concatenate(share)) for share in shares)
    smallest = min(len(part) for part in parts)
    if smallest < min_samples:
        raise DataError(
            f'partition="domain" leaves a client with {smallest} samples, of {min_samples} needed: '
            f"use fewer clients or a larger classes-per-client"
        )
    return Partition(parts)


RULE = Rule(
    title="some classes of one domain to each client",
    paper="FedADB (Liu et al., 2026), Table 6; open choices in docs/decisions.md",
    deal=deal,
    settings=("classes_per_client",),
)
