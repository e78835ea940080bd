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
from strategies.fedavg import FedAvg
from strategies.method import Method
from strategies.server import Broadcast, RoundInputs, ServerUpdate
from strategies.tunable import Range


class FedACGParams(Settings):
    """Server momentum and the client's pull towards the look-ahead model."""

    momentum: Annotated[float, Field(ge=0, lt=1, description="lambda of the server momentum")] = (
        0.85
    )
    beta: Annotated[
        float, Field(ge=0, description="weight of the pull towards the look-ahead model")
    ] = 1e-3


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

    def broadcast(self, inputs: RoundInputs) -> Broadcast:
        """Send theta~; buffers as they are."""
        rate, model = self.params.momentum, inputs.model
        if not inputs.state or rate == 0:
            return Broadcast(model)
        ahead = {n: model[n] + rate * inputs.state[f"momentum/{n}"] for n in inputs.parameter_names}
        return Broadcast(model | ahead)

    def update(self, inputs: RoundInputs, updates: Sequence[ClientUpdate]) -> ServerUpdate:
        """Return sum_k p_k theta_k, and the momentum, advanced to theta^t - theta^(t-1)."""
        mean = super().update(inputs, updates).model
        # lambda m + (mean - theta~) = mean - theta^(t-1): what m^t is, without cancellation
        momentum = {n: mean[n] - inputs.model[n] for n in inputs.parameter_names}
        norms = torch.stack([m.norm() for m in momentum.values()])
        return ServerUpdate(
            mean,
            state={f"momentum/{n}": m for n, m in momentum.items()},
            diagnostics={"momentum_norm": float(norms.norm())},
        )


METHOD = Method(
    captions={"momentum_norm": "Norm of the server's momentum"},
    title="FedACG",
    paper="Kim et al., CVPR 2024",
    params=FedACGParams,
    trainer=FedACGTrainer,
    only_sgd="its momentum accelerates what clients' SGD does to the look-ahead model",
    server=FedACG,
    tunable={"momentum": Range(0.5, 0.95, log=False), "beta": Range(1e-4, 0.1)},
)
