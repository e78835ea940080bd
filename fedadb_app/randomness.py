"""Every random number of a run comes from (seed, stream, indices); nothing is seeded globally.

The one exception is the noise of differential privacy, `secret_generator`.

Two consumers never share a stream, so drawing more numbers in one (another method's batches,
more anchors) leaves all others as they were: same weights, same partition, same client schedule
for every method of one seed. All uses of one stream have the same number of indices (trailing zeros
would not tell them apart).
"""

import zlib

import numpy as np
import torch


def _sequence(seed: int, stream: str, indices: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, zlib.crc32(stream.encode()), *indices])


def numpy_generator(seed: int, stream: str, *indices: int) -> np.random.Generator:
    """Return the NumPy generator of one stream.

    Parameters
    ----------
    seed : int
        The run's seed, non-negative.
    stream : str
        What the numbers are for, e.g. ``"partition"``.
    *indices : int
        Non-negative integers that tell apart the uses of one stream (round, client).
    """
    return np.random.Generator(np.random.PCG64(_sequence(seed, stream, indices)))


def torch_generator(seed: int, stream: str, *indices: int) -> torch.Generator:
    """Return the CPU torch generator of one stream; parameters as in `numpy_generator`."""
    state = _sequence(seed, stream, indices).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) & (2**63 - 1))


def secret_generator() -> np.random.Generator:
    """Return a generator that nobody can repeat, seeded by the operating system.

    The run's seed is no secret, every node receives it: noise drawn from it could be subtracted.
    """
    return np.random.default_rng()
