"""Who holds what: the lineage's per-class Dirichlet rule made to end, i.i.d., or by domain.

The Dirichlet rule, as in the code of FedNTD, FedLMD and FedSOL ("the lineage"): for each class c,
draw pi ~ Dirichlet(alpha * 1_K) over the K clients, set pi_k = 0 for every client that already
holds N/K samples, renormalise, and cut the class's shuffled samples accordingly. The lineage
redraws until every client has 10 samples, which for K=100, alpha=0.05 takes thousands of draws.
Here the number of draws is bounded; if none of them satisfies every client, the draw with the
smallest shortfall is repaired: each client that is short receives single samples, one by one, from
the client that is then the largest.

Only counts are drawn before a draw is accepted, so the bound costs well under a second. Everything
follows from (labels, rule, seed): each client builds its own part, nothing is sent.
"""

import hashlib
import heapq
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedadb_app.errors import DataError
from fedadb_app.randomness import numpy_generator

MIN_SAMPLES = 10
"""Samples every client is guaranteed (the lineage's threshold)."""

MAX_DRAWS = 100

Rule = Literal["dirichlet", "iid"]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Partition:
    """An assignment of training samples to clients: each to one, or by `domain_partition` to none.

    Attributes
    ----------
    indices : tuple[numpy.ndarray, ...]
        Per client, the positions of its samples in the training part, in its own fixed order.
    draws : int
        How many draws of the rule were made.
    moved : int
        How many samples the repair moved.
    """

    indices: tuple[npt.NDArray[np.int64], ...]
    draws: int = 1
    moved: int = 0

    @property
    def hash(self) -> str:
        """SHA-256 of the assignment: two runs with this hash trained on the same parts."""
        digest = hashlib.sha256()
        for part in self.indices:
            digest.update(len(part).to_bytes(8, "little") + part.astype("<i8").tobytes())
        return digest.hexdigest()


def make_partition(
    labels: npt.NDArray[np.int64],
    num_clients: int,
    rule: Rule,
    alpha: float,
    seed: int,
    min_samples: int = MIN_SAMPLES,
) -> Partition:
    """Divide the training samples among the clients.

    Parameters
    ----------
    labels : numpy.ndarray
        int64, ``(N,)``.
    num_clients : int
        K, at least 1.
    rule : {"dirichlet", "iid"}
        ``iid``: equal parts of one shuffle.
    alpha : float
        Concentration of the Dirichlet rule; smaller is more skewed. Unused for ``iid``.
    seed : int
        The run's seed.
    min_samples : int
        Samples every client is guaranteed.

    Raises
    ------
    DataError
        If N < K * min_samples.
    """
    if num_clients * min_samples > len(labels):
        raise DataError(
            f"{num_clients} clients with at least {min_samples} samples each need "
            f"{num_clients * min_samples} training samples, but the data set has {len(labels)}: "
            f"use at most {len(labels) // min_samples} clients"
        )
    rng = numpy_generator(seed, "partition")
    if rule == "iid":
        shuffled = rng.permutation(len(labels))
        return Partition(tuple(np.array_split(shuffled, num_clients)))
    sizes = np.bincount(labels)
    counts, draws = _draw_until_fed(rng, sizes, num_clients, alpha, min_samples)
    moved = _feed_the_short(rng, counts, min_samples)
    return Partition(_deal(rng, labels, counts), draws, moved)


def domain_partition(
    labels: npt.NDArray[np.int64],
    domains: npt.NDArray[np.int64],
    num_clients: int,
    classes_per_client: int,
    seed: int,
    min_samples: int = MIN_SAMPLES,
) -> Partition:
    """Give every client some classes of one domain: feature shift with label-space mismatch.

    The clients are divided evenly among the domains, in order. A random order of the classes is
    dealt to them in turn, over and over, so many to each. Clients of a domain that were dealt the
    same class share its samples evenly; a class of a domain that none of them was dealt is
    trained on by nobody.

    Parameters
    ----------
    labels, domains : numpy.ndarray
        int64, ``(N,)``; both count from 0.
    num_clients : int
        K, at least the number of domains.
    classes_per_client : int
        At most C.
    seed : int
        The run's seed.
    min_samples : int
        Samples every client is guaranteed.

    Raises
    ------
    DataError
        If there are too few clients or classes, or a client gets too few samples.
    """
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
    rng = numpy_generator(seed, "partition")
    turns = np.arange(num_clients * classes_per_client).reshape(num_clients, -1)
    dealt = rng.permutation(num_classes)[turns % num_classes]
    shares: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(num_clients)]
    for domain, clients in enumerate(np.array_split(np.arange(num_clients), num_domains)):
        for label in np.unique(dealt[clients]):
            holders = clients[(dealt[clients] == label).any(axis=1)]
            samples = rng.permutation(np.flatnonzero((domains == domain) & (labels == label)))
            for client, share in zip(holders, np.array_split(samples, len(holders)), strict=True):
                shares[client].append(share)
    parts = tuple(rng.permutation(np.concatenate(share)) for share in shares)
    smallest = min(len(part) for part in parts)
    if smallest < min_samples:
        raise DataError(
            f'partition="domain" leaves a client with {smallest} samples, of {min_samples} needed: '
            f"use fewer clients or a larger classes-per-client"
        )
    return Partition(parts)


def _draw_until_fed(
    rng: np.random.Generator, sizes: Counts, num_clients: int, alpha: float, min_samples: int
) -> tuple[Counts, int]:
    """Return the first draw that feeds every client, or the one with the smallest shortfall."""
    best, best_shortfall, draws = np.empty(0, np.int64), np.inf, 0
    while best_shortfall > 0 and draws < MAX_DRAWS:
        draws += 1
        counts = _draw_counts(rng, sizes, num_clients, alpha)
        shortfall = np.maximum(min_samples - counts.sum(axis=0), 0).sum()
        if shortfall < best_shortfall:
            best, best_shortfall = counts, shortfall
    return best, draws


def _draw_counts(rng: np.random.Generator, sizes: Counts, num_clients: int, alpha: float) -> Counts:
    """Draw how many samples of each class each client gets, ``(classes, clients)``."""
    counts = np.zeros((len(sizes), num_clients), np.int64)
    held = np.zeros(num_clients, np.int64)
    cap = sizes.sum() / num_clients
    for label, size in enumerate(sizes):
        if size == 0:
            continue
        share = np.where(held >= cap, 0.0, rng.dirichlet(np.full(num_clients, alpha)))
        if not share.sum() > 0:  # a tiny alpha gave all its mass to clients at the cap (or 0/0)
            share = (held < cap).astype(float)
        cuts = np.floor(np.cumsum(share / share.sum()) * size).astype(np.int64)
        # The last cut is N_c up to rounding; the rest must not go to a client at the cap.
        cuts[np.flatnonzero(share)[-1] :] = size
        counts[label] = np.diff(cuts, prepend=0)
        held += counts[label]
    return counts


def _feed_the_short(rng: np.random.Generator, counts: Counts, min_samples: int) -> int:
    """Move samples, in place, from the largest clients to those below `min_samples`."""
    totals = counts.sum(axis=0)
    short = np.flatnonzero(totals < min_samples)
    largest = [(-int(total), int(client)) for client, total in enumerate(totals)]
    heapq.heapify(largest)
    moved = 0
    for client in short:
        for _ in range(min_samples - int(totals[client])):
            total, giver = heapq.heappop(largest)
            # A random sample of the giver, so a receiver sees the giver's mix of classes.
            label = rng.choice(len(counts), p=counts[:, giver] / counts[:, giver].sum())
            counts[label, giver] -= 1
            counts[label, client] += 1
            heapq.heappush(largest, (total + 1, giver))
            moved += 1
    return moved


def _deal(
    rng: np.random.Generator, labels: npt.NDArray[np.int64], counts: Counts
) -> tuple[npt.NDArray[np.int64], ...]:
    """Assign concrete samples: shuffle each class, cut it at the counts, shuffle each client."""
    owners = np.empty(len(labels), np.int64)
    for label, per_client in enumerate(counts):
        samples = rng.permutation(np.flatnonzero(labels == label))
        owners[samples] = np.repeat(np.arange(counts.shape[1]), per_client)
    by_owner = np.argsort(owners, kind="stable")
    parts = np.split(by_owner, np.cumsum(counts.sum(axis=0))[:-1])
    return tuple(rng.permutation(part) for part in parts)
