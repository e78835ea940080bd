"""FedNTD: Lee et al., "Preservation of Global Knowledge by Not-True Distillation", NeurIPS 2022.

The teacher is the frozen global model of the round. For a sample (x, y), drop class y from both
logit vectors and compare what is left at temperature tau:

    q = softmax(z_g without y / tau),   p = softmax(z without y / tau)
    L = mean over the batch of [ H(y, z) + beta * tau^2 * KL(q || p) ]

The server averages as FedAvg does.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedadb_app.config import Settings
from fedadb_app.data.batches import Batch
from fedadb_app.local_training import Trainer, frozen_copy
from strategies.fedavg import FedAvg
from strategies.method import Method
from strategies.tunable import Range


class FedNTDParams(Settings):
    """Weight and temperature of the not-true distillation."""

    beta: Annotated[float, Field(ge=0, description="weight of the distillation")] = 1.0
    temperature: Annotated[float, Field(gt=0, description="tau of the distillation")] = 1.0


def not_true_distillation(
    student: Tensor, teacher: Tensor, labels: Tensor, temperature: float
) -> Tensor:
    """Return tau^2 * KL(q || p) over the not-true classes, averaged over the batch.

    Parameters
    ----------
    student, teacher : torch.Tensor
        Logits z and z_g, ``(B, C)``.
    labels : torch.Tensor
        int64, ``(B,)``.
    temperature : float
        tau.
    """
    samples, classes = student.shape
    not_true = torch.arange(classes, device=labels.device) != labels[:, None]
    log_p = (student[not_true].view(samples, classes - 1) / temperature).log_softmax(dim=1)
    log_q = (teacher[not_true].view(samples, classes - 1) / temperature).log_softmax(dim=1)
    return temperature**2 * F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)


class FedNTDTrainer(Trainer[FedNTDParams]):
    """Client half: cross-entropy and not-true distillation."""

    def begin(self) -> None:
        """Keep the global model as the teacher."""
        self.teacher = frozen_copy(self.model)

    def loss(self, batch: Batch) -> Tensor:
        """Return H(y, z) + beta * tau^2 * KL(q || p)."""
        student = self.model(batch.images)
        loss = F.cross_entropy(student, batch.labels)
        if self.params.beta == 0:
            return loss
        with torch.no_grad():
            teacher = self.teacher(batch.images)
        return loss + self.params.beta * self.distillation(student, teacher, batch.labels)

    def distillation(self, student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        """Return tau^2 * KL(q || p)."""
        return not_true_distillation(student, teacher, labels, self.params.temperature)


METHOD = Method(
    title="FedNTD",
    paper="Lee et al., NeurIPS 2022",
    params=FedNTDParams,
    trainer=FedNTDTrainer,
    server=FedAvg,
    tunable={"beta": Range(0.1, 5.0), "temperature": Range(0.5, 5.0)},
)
