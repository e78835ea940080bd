"""What an assignment of samples to clients is, and what the registry knows of a rule.

Everything follows from (labels, rule, seed): each client builds its own part, nothing is sent.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedadb_app.errors import DataError

MIN_SAMPLES = 10
"""Samples every client is guaranteed (the lineage's threshold)."""


@dataclass(frozen=True)
class Partition:
    """An assignment of training samples to clients: each to one, or by some rules to none.

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


@dataclass(frozen=True)
class Samples:
    """What a rule may look at.

    Attributes
    ----------
    dataset : str
        As the user named it, for sentences.
    labels : numpy.ndarray
        int64, ``(N,)``, counting from 0.
    domains : numpy.ndarray or None
        Which domain each comes from, likewise; None where there is but one.
    """

    dataset: str
    labels: npt.NDArray[np.int64]
    domains: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Rule:
    """A registered rule: who holds what.

    Attributes
    ----------
    title : str
        What it does, in a line.
    paper : str
        Where it comes from.
    deal : Callable[..., Partition]
        (samples, number of clients K, random numbers, its settings by name) -> the assignment.
        Raises `DataError` where the samples cannot be dealt so.
    settings : tuple[str, ...]
        Which keys of the run configuration it takes, as fields of `RunConfig`.
    """

    title: str
    paper: str
    deal: Callable[..., Partition]
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Skew:
    """How far the clients' labels are from those of all clients together.

    Attributes
    ----------
    distances : numpy.ndarray
        float64, ``(K,)``: the Jensen-Shannon distance (base 2: from 0 to 1) of each client's
        shares of the classes to the shares in the whole.
    missing_class_rate : float
        The share of (client, class) pairs without a sample, of the classes that somebody holds.
    """

    distances: npt.NDArray[np.float64]
    missing_class_rate: float

    @classmethod
    def of(cls, counts: npt.NDArray[np.int64]) -> "Skew":
        """Measure it from the samples of each class at each client, ``(K, C)``, none empty."""
        from scipy.spatial.distance import jensenshannon

        held = counts[:, counts.sum(axis=0) > 0]
        whole = np.broadcast_to(held.sum(axis=0), held.shape)
        return cls(jensenshannon(held, whole, base=2, axis=1), float((held == 0).mean()))


def check_enough(samples: Samples, num_clients: int, min_samples: int) -> None:
    """Refuse, with a `DataError`, more clients than the samples can feed."""
    if num_clients * min_samples > len(samples):
        raise DataError(
            f"{num_clients} clients with at least {min_samples} samples each need "
            f"{num_clients * min_samples} training samples, but the data set has {len(samples)}: "
            f"use at most {len(samples) // min_samples} clients"
        )
