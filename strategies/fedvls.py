"""FedVLS: Guo et al., "Exploring Vacant Classes in Label-Skewed Federated Learning", AAAI 2025.

With p_c the share of class c among the client's samples, V = {c: p_c = 0} its vacant classes, z and
z_g the logits of the local and of the received global model, N the samples of a batch,

    L = H(y, z + log p) + lambda L_dis + w L_ls
    L_dis = mean over the batch of KL( softmax(z_g[V]) || softmax(z[V]) )
    L_ls  = sum_c p_c log( (1/N) sum_i exp(m_ic) ),
            m_ic = z_ic - log p_c - log C where y_i != c, and 0 where y_i = c

L_dis keeps what the global model knows of the vacant classes among one another; with fewer than two
of them there is nothing to keep. L_ls holds down the logits of classes that a sample is not of.

The paper's text was at hand in excerpts only; this is its authors' code (krumpguo/FedVLS): w is
0.005 there, 1e-9 is added to p in logarithms, a sample of the class enters L_ls as exp(0), and
lambda is 0.1 in its example. Their teacher's mode is not stated; here it is evaluation mode. Their
weight decay is off; here it is the run's. The server averages as FedAvg does.
"""

import math
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

TINY = 1e-9
"""Added to p in logarithms."""


class FedVLSParams(Settings):
    """Weights of the two terms beside the calibrated cross-entropy."""

    distillation: Annotated[
        float, Field(ge=0, description="lambda, weight of the vacant-class distillation")
    ] = 0.1
    suppression: Annotated[float, Field(ge=0, description="weight of the logit suppression")] = (
        0.005
    )


def vacant_distillation(student: Tensor, teacher: Tensor, vacant: Tensor) -> Tensor:
    """Return L_dis of logits ``(B, C)``; ``vacant`` is bool ``(C,)``, with at least two classes."""
    divergence: Tensor = F.kl_div(
        student[:, vacant].log_softmax(dim=1),
        teacher[:, vacant].log_softmax(dim=1),
        reduction="batchmean",
        log_target=True,
    )
    return divergence


def logit_suppression(logits: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
    """Return L_ls of logits ``(B, C)`` under the shares p ``(C,)``."""
    samples, classes = logits.shape
    spread = logits - (shares + TINY).log() - math.log(classes)
    spread = spread.scatter(1, labels[:, None], 0.0)
    suppressed: Tensor = (shares * (spread.logsumexp(dim=0) - math.log(samples))).sum()
    return suppressed


class FedVLSTrainer(Trainer[FedVLSParams]):
    """Client half: calibrated cross-entropy, vacant-class distillation, logit suppression."""

    def begin(self) -> None:
        """Keep the global model as the teacher, and count the classes."""
        counts = self.task.data.class_counts
        self.shares = counts / counts.sum()
        self.vacant = counts == 0
        distils = self.params.distillation > 0 and int(self.vacant.sum()) > 1
        self.teacher = frozen_copy(self.model) if distils else None

    def loss(self, batch: Batch) -> Tensor:
        """Return L."""
        logits, labels, params = self.model(batch.images), batch.labels, self.params
        loss = F.cross_entropy(logits + (self.shares + TINY).log(), labels)
        if self.teacher is not None:
            with torch.no_grad():
                teacher = self.teacher(batch.images)
            loss = loss + params.distillation * vacant_distillation(logits, teacher, self.vacant)
        if params.suppression > 0:
            loss = loss + params.suppression * logit_suppression(logits, labels, self.shares)
        return loss


METHOD = Method(
    title="FedVLS",
    paper="Guo et al., AAAI 2025",
    params=FedVLSParams,
    trainer=FedVLSTrainer,
    server=FedAvg,
    tunable={"distillation": Range(0.01, 1.0), "suppression": Range(5e-4, 0.05)},
)
