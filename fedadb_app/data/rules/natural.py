"""Each site is a client, as the images were collected: nothing is drawn but the order."""

import numpy as np
import numpy.typing as npt

from fedadb_app.data.partition import MIN_SAMPLES, Partition, Rule, Samples
from fedadb_app.errors import ConfigError, DataError


def deal(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    min_samples: int = MIN_SAMPLES,
) -> Partition:
    """Give every client the samples of one domain, or an equal share of one.

    The clients are divided evenly among the domains, in order: with as many clients as domains,
    each is a domain.

    Parameters
    ----------
    samples : Samples
        Of several domains.
    num_clients : int
        K, at least the number of domains.
    rng : numpy.random.Generator
        The run's, for this purpose.
    min_samples : int
        Samples every client is guaranteed.

    Raises
    ------
    ConfigError
        If the samples come from one domain.
    DataError
        If there are too few clients, or a domain has too few samples for its clients.
    """
    domains = domains_of(samples, "natural")
    parts: list[npt.NDArray[np.int64]] = []
    for domain, clients in enumerate(clients_by_domain(domains, num_clients, "natural")):
        held = rng.permutation(np.flatnonzero(domains == domain))
        parts += np.array_split(held, len(clients))
        if len(parts[-1]) < min_samples:
            raise DataError(
                f'partition="natural": domain {domain + 1} has {len(held)} training samples for '
                f"{len(clients)} clients, of {min_samples} needed by each: use fewer clients, or "
                f"leave that site out"
            )
    return Partition(tuple(parts))


def domains_of(samples: Samples, rule: str) -> npt.NDArray[np.int64]:
    """Return the domain of each sample, or raise a `ConfigError` where there is but one."""
    if samples.domains is None:
        raise ConfigError(
            f'partition="{rule}" needs a data set whose images come from several domains: "pacs", '
            f'"pathmnist-styles", or own images with the column site in labels.csv; '
            f'dataset="{samples.dataset}" has none'
        )
    return samples.domains


def clients_by_domain(
    domains: npt.NDArray[np.int64], num_clients: int, rule: str
) -> list[npt.NDArray[np.int64]]:
    """Divide the clients evenly among the domains, or raise a `DataError` if they are too few."""
    num_domains = int(domains.max()) + 1
    if num_clients < num_domains:
        raise DataError(
            f'partition="{rule}" needs a client for each of the {num_domains} domains; there are '
            f"{num_clients}"
        )
    return np.array_split(np.arange(num_clients), num_domains)


RULE = Rule(
    title="each site is a client",
    paper="FLamby (Ogier du Terrail et al., NeurIPS 2022)",
    deal=deal,
)
