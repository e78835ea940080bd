"""Some classes to each client, whose samples those who hold it share: pathological label skew.

As "quantity-based label imbalance", #C = k, of NIID-Bench (Li et al., ICDE 2022), but the classes
are dealt in turn instead of drawn: each class has as many holders as any other, within one, so
that none is left out where K k is at least C.
"""

import numpy as np
import numpy.typing as npt

from fedadb_app.data.partition import MIN_SAMPLES, Partition, Rule, Samples
from fedadb_app.errors import DataError


def deal(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    classes_per_client: int,
    min_samples: int = MIN_SAMPLES,
) -> Partition:
    """Give every client some classes.

    A class that no client was dealt (possible where K times k is below C) is trained on by
    nobody; every other sample has one owner.

    Parameters
    ----------
    samples : Samples
        Of C classes.
    num_clients : int
        K.
    rng : numpy.random.Generator
        The run's, for this purpose.
    classes_per_client : int
        k, at most C.
    min_samples : int
        Samples every client is guaranteed.

    Raises
    ------
    DataError
        If there are too few classes, or a client gets too few samples.
    """
    everywhere = np.zeros(len(samples), np.int64)
    clients = [np.arange(num_clients)]
    parts = deal_in_turn(samples.labels, everywhere, clients, rng, classes_per_client)
    check_shares(parts, "classes", min_samples)
    return Partition(parts)


def deal_in_turn(
    labels: npt.NDArray[np.int64],
    domains: npt.NDArray[np.int64],
    clients_of: list[npt.NDArray[np.int64]],
    rng: np.random.Generator,
    classes_per_client: int,
) -> tuple[npt.NDArray[np.int64], ...]:
    """Deal a random order of the classes to the clients in turn, over and over, so many to each.

    Parameters
    ----------
    labels, domains : numpy.ndarray
        int64, ``(N,)``.
    clients_of : list[numpy.ndarray]
        The clients of each domain, who share the samples of a class that they were dealt there.
    rng : numpy.random.Generator
        The run's, for this purpose.
    classes_per_client : int
        At most C.

    Returns
    -------
    tuple[numpy.ndarray, ...]
        The positions of each client's samples.

    Raises
    ------
    DataError
        If there are too few classes.
    """
    num_clients, num_classes = sum(map(len, clients_of)), int(labels.max()) + 1
    if classes_per_client > num_classes:
        raise DataError(
            f"classes-per-client={classes_per_client}, but the data set has {num_classes} classes"
        )
    turns = np.arange(num_clients * classes_per_client).reshape(num_clients, -1)
    dealt = rng.permutation(num_classes)[turns % num_classes]
    shares: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(num_clients)]
    for domain, clients in enumerate(clients_of):
        for label in np.unique(dealt[clients]):
            holders = clients[(dealt[clients] == label).any(axis=1)]
            held = rng.permutation(np.flatnonzero((domains == domain) & (labels == label)))
            for client, share in zip(holders, np.array_split(held, len(holders)), strict=True):
                shares[client].append(share)
    return tuple(rng.permutation(np.concatenate(share)) for share in shares)


def check_shares(parts: tuple[npt.NDArray[np.int64], ...], rule: str, min_samples: int) -> None:
    """Refuse, with a `DataError`, parts of which one is too small."""
    smallest = min(len(part) for part in parts)
    if smallest < min_samples:
        raise DataError(
            f'partition="{rule}" leaves a client with {smallest} samples, of {min_samples} needed: '
            f"use fewer clients or a larger classes-per-client"
        )


RULE = Rule(
    title="some classes to each client",
    paper="after #C = k of NIID-Bench (Li et al., ICDE 2022)",
    deal=deal,
    settings=("classes_per_client",),
)
