"""FedLC: Zhang et al., "FL with Label Distribution Skew via Logits Calibration", ICML 2022.

With n_c the client's samples of class c, its logits are calibrated by margins,

    z'_c = z_c - tau * n_c^(-1/4),    L = -log( exp(z'_y) / sum_c exp(z'_c) )

so that rare classes get a larger margin, and a class without a sample (n_c = 0, an infinite margin)
is not in the sum: its logit is left alone. The mean is over the batch, and evaluation is of z.
tau = 0 means no calibration at all, absent classes included: FedAvg bit by bit. The server averages
as FedAvg does.

Neither the paper's text beyond its abstract nor code of its authors was at hand; the equation is
that of FL-bench, where an absent class has the margin 100 tau (a count of 1e-8).
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


class FedLCParams(Settings):
    """Size of the margins."""

    tau: Annotated[float, Field(ge=0, description="size of the margins; `0` is FedAvg")] = 1.0


def calibrated_loss(logits: Tensor, labels: Tensor, counts: Tensor, tau: float) -> Tensor:
    """Return the mean loss of logits ``(B, C)`` under margins by ``counts`` ``(C,)``."""
    margins = tau * counts.to(logits).pow(-0.25)  # infinite where there is no sample
    calibrated = (logits - margins).masked_fill(counts.to(logits.device) == 0, -torch.inf)
    return F.cross_entropy(calibrated, labels)


class FedLCTrainer(Trainer[FedLCParams]):
    """Client half: calibrated cross-entropy."""

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of calibrated logits."""
        if self.params.tau == 0:
            return super().loss(batch)
        logits, counts = self.model(batch.images), self.task.data.class_counts
        return calibrated_loss(logits, batch.labels, counts, self.params.tau)


METHOD = Method(
    title="FedLC",
    paper="Zhang et al., ICML 2022",
    params=FedLCParams,
    trainer=FedLCTrainer,
    server=FedAvg,
    tunable={"tau": Range(0.01, 2.0)},
)
