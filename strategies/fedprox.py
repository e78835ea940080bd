"""FedProx: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.

Each client stays near the global model of the round:

    L = H(y, z) + (mu / 2) * ||theta - theta^(t-1)||^2

Its gradient mu (theta - theta^(t-1)) is added to that of H, as the authors' optimiser does; the
training loss that is reported is H. The paper draws clients by their size and takes the plain mean;
its authors' code, and this app, draw evenly and average by samples. mu = 0 is FedAvg bit by bit.
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from fedadb_app.config import Settings
from fedadb_app.data.batches import Batch
from fedadb_app.local_training import Trainer
from strategies.fedavg import FedAvg
from strategies.method import Method
from strategies.tunable import Range


class FedProxParams(Settings):
    """Strength of the pull."""

    mu: Annotated[float, Field(ge=0, description="strength of the pull to the global model")] = 0.01


class FedProxTrainer(Trainer[FedProxParams]):
    """Client half: a proximal term around the received model."""

    def begin(self) -> None:
        """Keep the received model."""
        self.received = [p.detach().clone() for p in self.model.parameters()]

    def backward(self, batch: Batch) -> Tensor:
        """Add mu (theta - theta^(t-1)) to the gradient."""
        loss = super().backward(batch)
        if self.params.mu > 0:
            for parameter, start in zip(self.model.parameters(), self.received, strict=True):
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach() - start, alpha=self.params.mu)
        return loss


METHOD = Method(
    title="FedProx",
    paper="Li et al., MLSys 2020",
    params=FedProxParams,
    trainer=FedProxTrainer,
    server=FedAvg,
    tunable={"mu": Range(1e-3, 1.0)},
)
