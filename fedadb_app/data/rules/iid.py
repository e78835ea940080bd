"""Equal parts of one shuffle: no skew, as a reference."""

import numpy as np

from fedadb_app.data.partition import MIN_SAMPLES, Partition, Rule, Samples, check_enough


def deal(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    min_samples: int = MIN_SAMPLES,
) -> Partition:
    """Deal one shuffle in K equal parts.

    Raises
    ------
    DataError
        If there are less than K * min_samples samples.
    """
    check_enough(samples, num_clients, min_samples)
    return Partition(tuple(np.array_split(rng.permutation(len(samples)), num_clients)))


RULE = Rule(title="equal parts of one shuffle", paper="McMahan et al., 2017", deal=deal)
