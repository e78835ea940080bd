"""Robust means: what a round's updates become where single clients may be hostile or broken.

With Delta_k = theta_k - theta, the movement of client k from what it was sent, of m clients:

    clip-median    theta + mean_k min(1, c / ||Delta_k||) Delta_k,   c = median_k ||Delta_k||
    trimmed-mean   in each coordinate the mean without the b least and the b greatest values
    median         in each coordinate the median; of two middle values their mean

The last two are those of Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018
(definitions 1 and 2); clipping to the median norm is that of Andrew et al., "Differentially Private
Learning with Adaptive Clipping", NeurIPS 2021, here of the round itself and without noise.

Clients count equally: n_k is a client's own word, and whoever is not believed about its model
cannot be believed about that. So it is less than half of the *clients* (b of them for the trimmed
mean) that a rule withstands, however many samples these claim.

Running statistics are clipped by a median norm of their own, as they have another scale; what is
left lies between two variances and so is none below 0. BatchNorm's step counters, whole numbers,
take the median, or the rounded trimmed mean.
"""

import math
from collections.abc import Sequence
from statistics import median

import torch

from fedadb_app.aggregation import difference, squared_norm, weighted_mean
from fedadb_app.federation_keys import RobustRule
from fedadb_app.models.classifier import StateDict


def robust_mean(
    rule: RobustRule,
    sent: StateDict,
    models: Sequence[StateDict],
    trained: Sequence[str],
    trim_share: float,
) -> StateDict:
    """Return what a rule makes of a round's models.

    Parameters
    ----------
    rule : RobustRule
        Any but ``"none"``.
    sent : StateDict
        theta, what the clients started from.
    models : Sequence[StateDict]
        theta_k, at least one.
    trained : Sequence[str]
        The names of parameters; other tensors are running statistics and counters.
    trim_share : float
        Of ``trimmed-mean``: which share of the clients is left out at each end.
    """
    if rule == "clip-median":
        return clipped_mean(sent, models, trained)
    if rule == "median":
        return middle_mean(models, (len(models) - 1) // 2)
    return middle_mean(models, trimmed_at_each_end(len(models), trim_share))


def trimmed_at_each_end(clients: int, share: float) -> int:
    """Return b: the share of the clients, rounded up, as long as one or two are left."""
    # Without the small allowance 30 % of 10 clients could be 3.0000000000000004, so 4.
    return min(math.ceil(share * clients - 1e-9), (clients - 1) // 2)


def middle_mean(models: Sequence[StateDict], cut: int) -> StateDict:
    """Return, in each coordinate, the mean without the `cut` least and greatest values.

    Added up in float64, from the least value to the greatest: the order of clients does not matter.
    """
    middle: StateDict = {}
    for name, first in models[0].items():
        ordered = torch.stack([model[name].double() for model in models]).sort(dim=0).values
        mean = ordered[cut : len(models) - cut].mean(dim=0)
        middle[name] = (mean if first.is_floating_point() else mean.round()).to(first.dtype)
    return middle


def clipped_mean(sent: StateDict, models: Sequence[StateDict], trained: Sequence[str]) -> StateDict:
    """Return `sent` moved by the mean of the movements, each clipped to the median of their norms.

    Parameters
    ----------
    sent : StateDict
        theta.
    models : Sequence[StateDict]
        theta_k.
    trained : Sequence[str]
        The names of parameters, which are clipped together, and running statistics likewise.
    """
    floats = [name for name, tensor in sent.items() if tensor.is_floating_point()]
    counters = [name for name in sent if name not in floats]
    mean = middle_mean([{n: m[n] for n in counters} for m in models], (len(models) - 1) // 2)
    for names in ([n for n in floats if n in trained], [n for n in floats if n not in trained]):
        movements = [difference(model, sent, names) for model in models]
        norms = [math.sqrt(squared_norm(movement)) for movement in movements]
        limit = median(norms)
        factors = [limit / norm if norm > limit else 1.0 for norm in norms]
        moved = weighted_mean(movements, [factor / len(models) for factor in factors])
        mean |= {n: (sent[n].double() + moved[n]).to(sent[n].dtype) for n in names}
    return {name: mean[name] for name in sent}
