"""Some classes of one domain to each client: feature shift with label-space mismatch."""

import numpy as np

from fedadb_app.data.partition import MIN_SAMPLES, Partition, Rule, Samples
from fedadb_app.data.rules.classes import check_shares, deal_in_turn
from fedadb_app.data.rules.natural import clients_by_domain, domains_of


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
    domains = domains_of(samples, "domain")
    clients_of = clients_by_domain(domains, num_clients, "domain")
    parts = deal_in_turn(samples.labels, domains, clients_of, rng, classes_per_client)
    check_shares(parts, "domain", min_samples)
    return Partition(parts)


RULE = Rule(
    title="some classes of one domain to each client",
    paper="FedADB (Liu et al., 2026), Table 6; open choices in docs/decisions.md",
    deal=deal,
    settings=("classes_per_client",),
)
