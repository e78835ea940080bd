"""Client-level differential privacy: the clipped and noised mean, and what releasing it costs.

McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018, with their
fixed-denominator estimator. Of m participants drawn, those that gave a usable update count equally
and the others as a zero, so no client moves the sum by more than C:

    Delta_k = theta_k - theta
    release = theta + (sum_k min(1, C / ||Delta_k||) Delta_k + N(0, (z C)^2 I)) / m

n adaptive releases to which a client can contribute s C each are one Gaussian mechanism of
mu = s sqrt(n) / z (Dong, Roth & Su, "Gaussian Differential Privacy", JRSS-B 2022), of which it is
known exactly (Balle & Wang, "Improving the Gaussian Mechanism", ICML 2018) that

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

Nothing is gained from who is drawn: the schedule follows from the seed, which every node receives.
docs/privacy.md says what is protected, from whom, and what is not.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from fedadb_app.aggregation import difference, squared_norm, weighted_mean
from fedadb_app.config import RunConfig
from fedadb_app.models.classifier import StateDict


def noised_mean(
    reference: StateDict,
    models: Sequence[StateDict],
    drawn: int,
    clipping_norm: float,
    noise_multiplier: float,
    rng: np.random.Generator,
) -> StateDict:
    """Return `reference` moved by the noised mean of the clipped movements, in its own types.

    Parameters
    ----------
    reference : StateDict
        theta, what the participants started from; floating-point tensors only.
    models : Sequence[StateDict]
        theta_k of those that gave a usable update.
    drawn : int
        m, how many were asked.
    clipping_norm : float
        C, the largest L2 norm of a client's movement over all tensors together.
    noise_multiplier : float
        z: the sum's noise has the standard deviation z C in every coordinate.
    rng : numpy.random.Generator
        Of the noise; must not be predictable.
    """
    movements = [difference(model, reference, reference) for model in models]
    norms = [math.sqrt(squared_norm(movement)) for movement in movements]
    total = weighted_mean(movements, [clipping_norm / max(n, clipping_norm) for n in norms])
    deviation = noise_multiplier * clipping_norm
    released = {}
    for name, start in reference.items():
        noise = torch.as_tensor(rng.normal(0, deviation, start.shape))
        released[name] = (start.double() + (total[name] + noise) / drawn).to(start.dtype)
    return released


def largest_noised_norm(config: RunConfig, dimension: int) -> float:
    """Return which norm a clipped and noised update of d numbers exceeds less than once in e^18."""
    noise = math.sqrt(dimension) + 6  # in units of z C
    return config.clipping_norm * (1 + config.noise_multiplier * noise)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon for which a Gaussian mechanism is (epsilon, delta)-private.

    Parameters
    ----------
    mu : float
        Sensitivity over standard deviation.
    delta : float
        Between 0 and 1.
    """
    # Imported here: the server alone asks, and a ClientApp's process, one a message, starts sooner.
    from scipy.optimize import brentq
    from scipy.special import log_ndtr, ndtr

    def excess(epsilon: float) -> float:
        tail = math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
        return float(ndtr(mu / 2 - epsilon / mu)) - tail - delta

    if excess(0.0) <= 0:
        return 0.0
    # Bun & Steinke, TCC 2016: mu^2/2-zCDP, so the root is below this.
    return float(brentq(excess, 0.0, mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))))


def epsilon_spent(config: RunConfig, rounds: int) -> float:
    """Return epsilon, at the configured delta, of a client drawn in so many rounds.

    Neighbours are, for ``central``, a federation in which the client's update counts and one in
    which it counts as a zero (s = 1); for ``local``, any two data sets of the client, equally
    large (s = 2).
    """
    if config.privacy == "none":
        return math.nan
    reach = 1 if config.privacy == "central" else 2  # s
    return gaussian_epsilon(reach * math.sqrt(rounds) / config.noise_multiplier, config.delta)
