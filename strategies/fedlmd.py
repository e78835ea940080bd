"""FedLMD: Lu et al., "Federated Learning with Label-Masking Distillation", ACM MM 2023.

Client k's majority labels are M_k = {c : n_{k,c} > n_k / C}. The teacher is the frozen global
model; it speaks only of minority labels, while the student is normalised over all not-true ones:

    q_c ~ exp(z_{g,c} / tau)  for c outside M_k and c != y, else 0
    p_c ~ exp(z_c / tau)      for c != y
    L = mean over the batch of [ H(y, z) + beta * tau^2 * KL(q || p) ]

A sample whose label is the only one outside M_k has no q; its distillation weight is 0.
The server averages as FedAvg does; the label counts never leave the client.
"""

import torch
from torch import Tensor

from strategies.fedavg import FedAvg
from strategies.fedntd import FedNTDParams, FedNTDTrainer
from strategies.method import Method
from strategies.tunable import Range


class FedLMDParams(FedNTDParams):
    """Weight and temperature of the label-masking distillation."""


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


class FedLMDTrainer(FedNTDTrainer):
    """Client half: FedNTD's loss with the teacher's majority labels masked."""

    def begin(self) -> None:
        """Keep the global model as the teacher, and count the labels."""
        super().begin()
        self.majority = majority_labels(self.task.data.class_counts)

    def distillation(self, student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        """Return tau^2 * KL(q || p)."""
        return label_masking_distillation(
            student, teacher, labels, self.majority, self.params.temperature
        )


METHOD = Method(
    title="FedLMD",
    paper="Lu et al., ACM MM 2023",
    params=FedLMDParams,
    trainer=FedLMDTrainer,
    server=FedAvg,
    tunable={"beta": Range(0.1, 5.0), "temperature": Range(0.5, 5.0)},
)
