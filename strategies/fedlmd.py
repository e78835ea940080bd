"""FedLMD: Lu et al., "Federated Learning with Label-Masking Distillation", ACM MM 2023.

Client k's majority labels are M_k = {c : n_{k,c} > n_k / C}. The teacher is the frozen global
model; it speaks only of minority labels, while the student is normalised over all not-true ones:

    q_c ~ exp(z_{g,c} / tau)  for c outside M_k and c != y, else 0
    p_c ~ exp(z_c / tau)      for c != y
    L = mean over the batch of [ H(y, z) + beta * tau^2 * KL(q || p) ]

A sample whose label is the only one outside M_k has no q; its distillation weight is 0.
The server averages as FedAvg does; the label counts never leave the client.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedadb_app.config import Settings
from fedadb_app.data.batches import Batch
from fedadb_app.local_training import Trainer, frozen_copy
from strategies.base import Method
from strategies.fedavg import FedAvg


class FedLMDParams(Settings):
    """Weight and temperature of the label-masking distillation."""

    beta: Annotated[float, Field(ge=0)] = 1.0
    temperature: Annotated[float, Field(gt=0)] = 1.0  # tau


def majority_labels(class_counts: Tensor) -> Tensor:
    """Return M_k as a mask ``(C,)`` of a client's samples per class ``(C,)``."""
    return class_counts > class_counts.sum() / len(class_counts)


def label_masking_distillation(
    student: Tensor, teacher: Tensor, labels: Tensor, majority: Tensor, temperature: float
) -> Tensor:
    """Return tau^2 * KL(q || p), averaged over the batch.

    Parameters
    ----------
    student, teacher : torch.Tensor
        Logits z and z_g, ``(B, C)``.
    labels : torch.Tensor
        int64, ``(B,)``.
    majority : torch.Tensor
        M_k, bool ``(C,)``.
    temperature : float
        tau.
    """
    true = torch.arange(student.shape[1], device=labels.device) == labels[:, None]
    silent = majority | true  # where q is 0
    speaks = ~silent.all(dim=1)
    log_p = (student / temperature).masked_fill(true, -torch.inf).log_softmax(dim=1)[speaks]
    log_q = (teacher / temperature).masked_fill(silent, -torch.inf)[speaks].log_softmax(dim=1)
    # 0 * log 0 = 0: mask the logarithms as well, or infinities would meet.
    difference = (log_q - log_p).masked_fill(silent[speaks], 0.0)
    return temperature**2 * (log_q.exp() * difference).sum() / len(labels)


class FedLMDTrainer(Trainer[FedLMDParams]):
    """Client half: cross-entropy and label-masking distillation."""

    def begin(self) -> None:
        """Keep the global model as the teacher, and count the labels."""
        self.teacher = frozen_copy(self.model)
        self.majority = majority_labels(self.task.data.class_counts)

    def loss(self, batch: Batch) -> Tensor:
        """Return H(y, z) + beta * tau^2 * KL(q || p)."""
        student = self.model(batch.images)
        loss = F.cross_entropy(student, batch.labels)
        if self.params.beta == 0:
            return loss
        with torch.no_grad():
            teacher = self.teacher(batch.images)
        distillation = label_masking_distillation(
            student, teacher, batch.labels, self.majority, self.params.temperature
        )
        return loss + self.params.beta * distillation


METHOD = Method(
    title="FedLMD",
    paper="Lu et al., ACM MM 2023",
    params=FedLMDParams,
    trainer=FedLMDTrainer,
    strategy=FedAvg,
)
