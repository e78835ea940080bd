"""FedEXP: Jhunjhunwala et al., "Speeding Up Federated Averaging via Extrapolation", ICLR 2023.

Clients train as in FedAvg. The server extrapolates along the mean update; with
Delta_k = theta_k - theta^(t-1) and Delta = sum_k p_k Delta_k,

    eta_g   = max(1, sum_k p_k ||Delta_k||^2 / (2 (||Delta||^2 + eps_t)))
    theta^t = theta^(t-1) + eta_g Delta,       eps_t = eps * decay^(2 (t-1))

The norms are over the trained parameters only; buffers are averaged, not extrapolated (running
variances could turn negative). eps decays with the square of the learning rate, as the updates
do. Evaluated is the mean of the last two iterates; the next round starts from theta^t.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from fedadb_app.aggregation import (
    ClientUpdate,
    difference,
    in_types_of,
    sample_weights,
    squared_norm,
    weighted_mean,
)
from fedadb_app.config import Settings
from fedadb_app.local_training import Trainer
from fedadb_app.models.classifier import StateDict
from strategies.fedavg import FedAvg
from strategies.method import Method
from strategies.server import RoundInputs, ServerUpdate
from strategies.tunable import Range


class FedEXPParams(Settings):
    """The damping eps, and whether it counts once per participant, as in the authors' code."""

    eps: Annotated[
        float, Field(ge=0, description="damping of the extrapolation, decayed with the rounds")
    ] = 1e-3
    eps_times_participants: Annotated[
        bool, Field(description="whether eps counts once per participant, as in the authors' code")
    ] = False


def extrapolation(
    deltas: Sequence[StateDict], mean_delta: StateDict, weights: Sequence[float], eps: float
) -> float:
    """Return eta_g >= 1."""
    spread = sum(w * squared_norm(d) for w, d in zip(weights, deltas, strict=True))
    denominator = 2 * (squared_norm(mean_delta) + eps)
    return max(1.0, spread / denominator) if denominator > 0 else 1.0


class FedEXP(FedAvg[FedEXPParams]):
    """Server half: the extrapolated mean."""

    needs_each_update = True  # ||Delta_k||

    def update(self, inputs: RoundInputs, updates: Sequence[ClientUpdate]) -> ServerUpdate:
        """Return theta^(t-1) + eta_g Delta, buffers averaged; evaluate the last two iterates."""
        before, names = inputs.model, inputs.parameter_names
        weights = sample_weights(updates)
        mean = super().update(inputs, updates).model
        eps = self.params.eps * inputs.learning_rate_decay ** (2 * (inputs.server_round - 1))
        if self.params.eps_times_participants:
            eps *= len(updates)
        deltas = [difference(u.arrays, before, names) for u in updates]
        mean_delta = weighted_mean(deltas, weights)
        step = extrapolation(deltas, mean_delta, weights, eps)
        moved = {n: before[n] + step * mean_delta[n] for n in names}
        after = in_types_of(before, mean | moved)
        first = inputs.server_round == 1  # theta^0 is no iterate
        return ServerUpdate(
            after,
            diagnostics={"extrapolation": step},
            evaluated=after if first else weighted_mean([after, before], [0.5, 0.5]),
            also_evaluated={"last_iterate": after},
        )


METHOD = Method(
    captions={"extrapolation": "Server step size (extrapolation)"},
    title="FedEXP",
    paper="Jhunjhunwala et al., ICLR 2023",
    params=FedEXPParams,
    trainer=Trainer,
    only_sgd="its extrapolation measures updates whose size follows the learning rate, as SGD's do",
    server=FedEXP,
    tunable={"eps": Range(1e-4, 0.1)},
)
