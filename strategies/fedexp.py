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
    sample_weights,
    squared_norm,
    weighted_mean,
)
from fedadb_app.config import Settings
from fedadb_app.local_training import Trainer
from fedadb_app.models.classifier import StateDict
from strategies.fedavg import FedAvg
from strategies.method import Method


class FedEXPParams(Settings):
    """The damping eps, and whether it counts once per participant, as in the authors' code."""

    eps: Annotated[float, Field(ge=0)] = 1e-3
    eps_times_participants: bool = False


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

    def update(self, server_round: int, updates: Sequence[ClientUpdate]) -> StateDict:
        """Return theta^(t-1) + eta_g Delta; buffers averaged."""
        weights = sample_weights(updates)
        mean = super().update(server_round, updates)
        eps = self.params.eps * self.run.config.learning_rate_decay ** (2 * (server_round - 1))
        if self.params.eps_times_participants:
            eps *= len(updates)
        names = self.parameter_names
        deltas = [difference(u.arrays, self.global_model, names) for u in updates]
        mean_delta = weighted_mean(deltas, weights)
        step = extrapolation(deltas, mean_delta, weights, eps)
        self.record.diagnostics["extrapolation"] = step
        self.state = {f"previous/{name}": t for name, t in self.global_model.items()}
        return mean | {n: self.global_model[n] + step * mean_delta[n] for n in names}

    def evaluated_model(self) -> StateDict:
        """Return the mean of the last two iterates; after round 1, theta^1 alone."""
        if self.record.round == 1:
            return self.global_model
        previous = {name: self.state[f"previous/{name}"] for name in self.global_model}
        return weighted_mean([self.global_model, previous], [0.5, 0.5])

    def also_evaluated(self) -> dict[str, StateDict]:
        """Evaluate theta^t beside it."""
        return {"last_iterate": self.global_model}


METHOD = Method(
    title="FedEXP",
    paper="Jhunjhunwala et al., ICLR 2023",
    params=FedEXPParams,
    trainer=Trainer,
    strategy=FedEXP,
)
