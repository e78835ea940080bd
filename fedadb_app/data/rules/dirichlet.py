"""The lineage's per-class Dirichlet rule, made to end.

As in the code of FedNTD, FedLMD and FedSOL ("the lineage"): for each class c, draw
pi ~ Dirichlet(alpha * 1_K) over the K clients, set pi_k = 0 for every client that already holds
N/K samples, renormalise, and cut the class's shuffled samples accordingly. The lineage redraws
until every client has 10 samples, which for K=100, alpha=0.05 takes thousands of draws. Here the
number of draws is bounded; if none of them satisfies every client, the draw with the smallest
shortfall is repaired: each client that is short receives single samples, one by one, from the
client that is then the largest.

Only counts are drawn before a draw is accepted, so the bound costs well under a second.
"""

import heapq

import numpy as np
import numpy.typing as npt

from fedadb_app.data.partition import MIN_SAMPLES, Partition, Rule, Samples, check_enough

MAX_DRAWS = 100

Counts = npt.NDArray[np.int64]


def deal(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    alpha: float,
    min_samples: int = MIN_SAMPLES,
) -> Partition:
    """Deal every class by shares that are drawn from a Dirichlet distribution.

    Parameters
    ----------
    samples : Samples
        N of them.
    num_clients : int
        K, at least 1.
    rng : numpy.random.Generator
        The run's, for this purpose.
    alpha : float
        Concentration; smaller is more skewed.
    min_samples : int
        Samples every client is guaranteed.

    Raises
    ------
    DataError
        If N < K * min_samples.
    """
    check_enough(samples, num_clients, min_samples)
    sizes = np.bincount(samples.labels)
    counts, draws = _draw_until_fed(rng, sizes, num_clients, alpha, min_samples)
    moved = _feed_the_short(rng, counts, min_samples)
    return Partition(_assign(rng, samples.labels, counts), draws, moved)


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


def _assign(
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


RULE = Rule(
    title="each class by shares drawn from a Dirichlet distribution",
    paper="the code of FedNTD, FedLMD and FedSOL",
    deal=deal,
    settings=("alpha",),
)
