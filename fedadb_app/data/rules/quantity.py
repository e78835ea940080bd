"""Parts of very different sizes, each with the mix of the whole: quantity skew.

As NIID-Bench's (Li et al., ICDE 2022): the sizes are drawn from a Dirichlet distribution, and the
samples dealt by one shuffle. That is `dirichlet` where all samples are of one class, its bounded
draws and its repair included.
"""

import numpy as np

from fedadb_app.data.partition import MIN_SAMPLES, Partition, Rule, Samples
from fedadb_app.data.rules import dirichlet


def deal(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    alpha: float,
    min_samples: int = MIN_SAMPLES,
) -> Partition:
    """Deal one shuffle in parts whose sizes are drawn.

    Parameters
    ----------
    samples : Samples
        N of them.
    num_clients : int
        K, at least 1.
    rng : numpy.random.Generator
        The run's, for this purpose.
    alpha : float
        Concentration; the smaller, the more the sizes differ.
    min_samples : int
        Samples every client is guaranteed.

    Raises
    ------
    DataError
        If N < K * min_samples.
    """
    alike = Samples(samples.dataset, np.zeros_like(samples.labels))
    return dirichlet.deal(alike, num_clients, rng, alpha, min_samples)


RULE = Rule(
    title="parts of sizes drawn from a Dirichlet distribution, each with the mix of the whole",
    paper="NIID-Bench (Li et al., ICDE 2022)",
    deal=deal,
    settings=("alpha",),
)
