"""Pure functions on state dicts that server updates are made of."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedadb_app.models.classifier import StateDict


@dataclass(frozen=True)
class ClientUpdate:
    """One client's usable reply.

    Attributes
    ----------
    client : int
        Its identity.
    arrays : StateDict
        Its model after local training.
    num_examples : int
        n_k.
    metrics : dict[str, float]
        ``train-loss`` and the method's own scalars.
    state_round : int or None
        After which round the state was kept that the client went on with, 0 = it had none; None =
        the method's clients keep no state.
    """

    client: int
    arrays: StateDict
    num_examples: int
    metrics: dict[str, float] = field(default_factory=dict)
    state_round: int | None = None


def sample_weights(updates: Sequence[ClientUpdate]) -> list[float]:
    """Return p_k = n_k / sum_j n_j over the round's participants (equation 1)."""
    total = sum(update.num_examples for update in updates)
    return [update.num_examples / total for update in updates]


def weighted_mean(models: Sequence[StateDict], weights: Sequence[float]) -> StateDict:
    """Return sum_k w_k * model_k, added up in float64 in the order given.

    Integer tensors (BatchNorm's step counters) are averaged and rounded.
    """
    mean: StateDict = {}
    for name, first in models[0].items():
        total = torch.zeros(first.shape, dtype=torch.float64)
        for model, weight in zip(models, weights, strict=True):
            total.add_(model[name].double(), alpha=weight)
        mean[name] = (total if first.is_floating_point() else total.round()).to(first.dtype)
    return mean


def in_types_of(reference: StateDict, model: StateDict) -> StateDict:
    """Return the model with each tensor in the type that the reference has."""
    return {name: tensor.to(reference[name].dtype) for name, tensor in model.items()}


def difference(model: StateDict, reference: StateDict, names: Iterable[str]) -> StateDict:
    """Return model - reference for the named tensors, in float64."""
    return {name: _float64(model[name]).sub_(reference[name]) for name in names}


def squared_norm(model: StateDict) -> float:
    """Return the squared L2 norm over all tensors."""
    return sum(float(_float64(tensor).square_().sum()) for tensor in model.values())


def _float64(tensor: Tensor) -> Tensor:
    """Return a copy that may be changed: a large model's temporaries cost more than its sums."""
    return tensor.to(torch.float64, copy=True)


def client_drift(
    models: Sequence[StateDict],
    sent: StateDict,
    trained: Iterable[str],
    weights: Sequence[float],
) -> dict[str, float]:
    """Say how far the clients of a round have moved, and how far apart.

    Parameters
    ----------
    models : Sequence[StateDict]
        theta_k of each participant.
    sent : StateDict
        theta, what they started from.
    trained : Iterable[str]
        The names of parameters; other tensors do not count.
    weights : Sequence[float]
        p_k, of sum 1.

    Returns
    -------
    dict[str, float]
        ``update_norm`` of the mean of theta_k - theta (whatever the server makes of it),
        ``client_update_norm`` the mean norm, and ``client_drift`` the root of the mean squared
        distance from the mean. Where all move alike the first two are equal and the third is 0.
    """
    squares = [0.0] * len(models)
    mean_square = 0.0
    for name in trained:  # a tensor at a time: whole models in float64 would be large
        start = sent[name].double()
        mean = torch.zeros_like(start)
        for client, (model, weight) in enumerate(zip(models, weights, strict=True)):
            change = _float64(model[name]).sub_(start)
            mean.add_(change, alpha=weight)
            squares[client] += float(change.square_().sum())
        mean_square += float(mean.square_().sum())
    spread = sum(w * s for w, s in zip(weights, squares, strict=True)) - mean_square
    return {
        "update_norm": math.sqrt(mean_square),
        "client_update_norm": sum(w * math.sqrt(s) for w, s in zip(weights, squares, strict=True)),
        "client_drift": math.sqrt(max(0.0, spread)),
    }


def absurd_change(
    model: StateDict, sent: StateDict, trained: Collection[str], factor: float
) -> str:
    """Say by how much too far a client's model is from the one it was sent; nothing if it is not.

    Parameters
    ----------
    model, sent : StateDict
        theta_k and what it started from.
    trained : Collection[str]
        The names of parameters; the other floating-point tensors are running statistics.
    factor : float
        c of ||theta_k - theta|| > c ||theta||; c^2 counts for running statistics, since variances
        are squares. 0 allows everything.
    """
    floats = [name for name, tensor in sent.items() if tensor.is_floating_point()]
    for kind, names, limit in (
        ("update", [name for name in floats if name in trained], factor),
        ("change of running statistics", [n for n in floats if n not in trained], factor**2),
    ):
        moved = _norm([model[name] - sent[name] for name in names])
        size = _norm([sent[name] for name in names])
        if factor and moved > limit * size:
            return (
                f"its {kind} has the norm {moved:.4g}, more than {limit:g} times that of what it "
                f"was sent, {size:.4g} (max-relative-update={factor:g})"
            )
    return ""


def _norm(tensors: Iterable[Tensor]) -> float:
    """Return the L2 norm over all tensors, added up in float64 without a copy of them."""
    vector_norm = torch.linalg.vector_norm
    return math.hypot(*(float(vector_norm(tensor, dtype=torch.float64)) for tensor in tensors))


def all_finite(model: StateDict) -> bool:
    """Whether no tensor holds an infinity or a not-a-number."""
    return all(bool(torch.isfinite(t).all()) for t in model.values())
