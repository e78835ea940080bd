"""FedDecorr: Shi et al., "Dimensional Collapse in Heterogeneous Federated Learning", ICLR 2023.

For a batch's features H (B x d, the input of the last linear layer), z-score each column with the
unbiased variance, H^ = (H - mean) / sqrt(1e-8 + var), and let A = H^' H^. Then

    L = H(y, z) + beta * R,    R = 1/(d (d-1)) * sum_{i != j} A_ij^2 / B

This is the authors' code; their paper writes the squared Frobenius norm of the correlation matrix
over d^2, which is smaller by a factor of about B. The server averages as FedAvg does.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedadb_app.config import Settings
from fedadb_app.data.batches import Batch
from fedadb_app.local_training import Trainer
from strategies.fedavg import FedAvg
from strategies.method import Method
from strategies.tunable import Range


class FedDecorrParams(Settings):
    """Weight of the decorrelation term."""

    beta: Annotated[
        float,
        Field(
            ge=0,
            description="weight of the decorrelation, on the authors' scale, "
            "which grows with the batch",
        ),
    ] = 0.1


def decorrelation(features: Tensor) -> Tensor:
    """Return R of a feature matrix ``(B, d)``; 0 for a single sample."""
    samples, size = features.shape
    if samples == 1:
        return features.new_zeros(())
    with torch.autocast(features.device.type, enabled=False):  # A in full precision
        features = features.float()
        centred = features - features.mean(dim=0)
        scored = centred / torch.sqrt(1e-8 + centred.square().sum(dim=0) / (samples - 1))
        products = scored.T @ scored  # A
    off_diagonal = products.square().sum() - products.diagonal().square().sum()
    return off_diagonal / samples / (size * (size - 1))


class FedDecorrTrainer(Trainer[FedDecorrParams]):
    """Client half: cross-entropy and decorrelated features."""

    def loss(self, batch: Batch) -> Tensor:
        """Return H(y, z) + beta * R."""
        features = self.model.features(batch.images)
        logits = self.model.heads[self.model.evaluated_head](features)
        loss = F.cross_entropy(logits, batch.labels)
        if self.params.beta == 0:
            return loss
        return loss + self.params.beta * decorrelation(features)


METHOD = Method(
    title="FedDecorr",
    paper="Shi et al., ICLR 2023",
    params=FedDecorrParams,
    trainer=FedDecorrTrainer,
    server=FedAvg,
    tunable={"beta": Range(0.01, 1.0)},
)
