"""FedACG: Kim et al., "Communication-Efficient FL with Accelerated Client Gradient", CVPR 2024.

The server keeps a momentum m and sends the look-ahead model instead of the global one:

    broadcast  theta~ = theta^(t-1) + lambda m^(t-1)
    client     L = H + beta ||theta - theta~||^2        (the authors' code; their paper has beta/2)
    server     Delta = sum_k p_k (theta_k - theta~),    m^t = lambda m^(t-1) + Delta
               theta^t = theta^(t-1) + m^t  (= sum_k p_k theta_k)

Momentum and look-ahead act on trained parameters; buffers are averaged. theta^t is evaluated.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedadb_app.aggregation import ClientUpdate
from fedadb_app.config import Settings
from fedadb_app.data.batches import Batch
from fedadb_app.local_training import Trainer
from fedadb_app.models.classifier import StateDict
from strategies.fedavg import FedAvg
from strategies.method import Method


class FedACGParams(Settings):
    """Server momentum and the client's pull towards the look-ahead model."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.85  # lambda
    beta: Annotated[float, Field(ge=0)] = 1e-3


class FedACGTrainer(Trainer[FedACGParams]):
    """Client half: a proximal term around the received model."""

    def begin(self) -> None:
        """Keep the received model, theta~."""
        self.received = [p.detach().clone() for p in self.model.parameters()]

    def backward(self, batch: Batch) -> Tensor:
        """Add the gradient of beta ||theta - theta~||^2, which is 2 beta (theta - theta~)."""
        loss = super().backward(batch)
        if self.params.beta > 0:
            for parameter, start in zip(self.model.parameters(), self.received, strict=True):
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach() - start, alpha=2 * self.params.beta)
        return loss


class FedACG(FedAvg[FedACGParams]):
    """Server half: momentum with a look-ahead broadcast."""

    def broadcast_model(self, server_round: int) -> StateDict:
        """Return theta~; buffers as they are."""
        if not self.state or self.params.momentum == 0:
            return self.global_model
        ahead = {
            name: self.global_model[name] + self.params.momentum * self.state[f"momentum/{name}"]
            for name in self.parameter_names
        }
        return self.global_model | ahead

    def update(self, server_round: int, updates: Sequence[ClientUpdate]) -> StateDict:
        """Return sum_k p_k theta_k, and advance the momentum to theta^t - theta^(t-1)."""
        mean = super().update(server_round, updates)
        # lambda m + (mean - theta~) = mean - theta^(t-1): what m^t is, without cancellation
        self.state = {
            f"momentum/{name}": mean[name] - self.global_model[name]
            for name in self.parameter_names
        }
        norms = torch.stack([m.norm() for m in self.state.values()])
        self.record.diagnostics["momentum_norm"] = float(norms.norm())
        return mean


METHOD = Method(
    title="FedACG",
    paper="Kim et al., CVPR 2024",
    params=FedACGParams,
    trainer=FedACGTrainer,
    strategy=FedACG,
)
