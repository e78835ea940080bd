"""FedGELA: Fan et al., "Federated Learning with Bilateral Curation", NeurIPS 2023.

The head is a fixed simplex equiangular tight frame V (d x C), drawn once from the run's seed and
never trained or sent:

    V = sqrt(C/(C-1)) * U (I - 11'/C),   U'U = I     (unit columns, inner products -1/(C-1))

Client k scales class c's logit by Phi_{k,c} = C n_{k,c} / n_k and divides by a temperature T:

    u(x) = BatchNorm1d(phi(x)),   z_c = Phi_{k,c} <u(x), V_c>,   L = H(y, z / T)

with the gradient's norm clipped at 20. The global model is evaluated with plain V. The server
averages everything but V by samples. The authors put a two-layer projection before the BatchNorm;
here the extractor of the other methods is kept.
"""

import math
from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedadb_app.config import RunConfig, Settings
from fedadb_app.data.batches import Batch
from fedadb_app.errors import ConfigError
from fedadb_app.local_training import Trainer
from fedadb_app.models.classifier import ModelSpec
from strategies.fedavg import FedAvg
from strategies.method import Method
from strategies.tunable import Range

CLIP = 20.0
"""Largest L2 norm of a step's gradient."""


class FedGELAParams(Settings):
    """Temperature of the local loss."""

    temperature: Annotated[
        float, Field(gt=0, description="T, which the scaled logits are divided by")
    ] = 0.2


def simplex_frame(feature_size: int, num_classes: int) -> Tensor:
    """Return V, ``(d, C)``, drawn from torch's current random state; needs d >= C."""
    if feature_size < num_classes:
        raise ConfigError(
            f"fedgela needs at least as many features as classes, but the model has "
            f"{feature_size} for {num_classes} classes; choose another model"
        )
    orthonormal, _ = torch.linalg.qr(torch.randn(feature_size, num_classes))
    centring = torch.eye(num_classes) - 1 / num_classes
    frame: Tensor = math.sqrt(num_classes / (num_classes - 1)) * orthonormal @ centring
    return frame


class FrameHead(nn.Module):
    """BatchNorm1d and the fixed frame; V is part of the code, not of the state.

    The statistics follow the extractor's policy: those of the batch for ``norm="batch-local"``,
    running ones otherwise.
    """

    frame: Tensor

    def __init__(self, feature_size: int, spec: ModelSpec) -> None:
        super().__init__()
        running = spec.norm != "batch-local"
        self.norm = nn.BatchNorm1d(feature_size, track_running_stats=running)
        frame = simplex_frame(feature_size, spec.num_classes)
        self.register_buffer("frame", frame, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Return <u(x), V_c>, ``(B, C)``."""
        logits: Tensor = self.norm(features) @ self.frame
        return logits


def frame_head(feature_size: int, spec: ModelSpec) -> Mapping[str, nn.Module]:
    """Return the fixed head."""
    return {"frame": FrameHead(feature_size, spec)}


def class_scales(class_counts: Tensor) -> Tensor:
    """Return Phi_k = C n_{k,c} / n_k, float32 ``(C,)``; its sum is C."""
    return class_counts * (len(class_counts) / class_counts.sum())


class FedGELATrainer(Trainer[FedGELAParams]):
    """Client half: scaled logits on a fixed frame."""

    def begin(self) -> None:
        """Count the labels."""
        self.scales = class_scales(self.task.data.class_counts)

    def loss(self, batch: Batch) -> Tensor:
        """Return H(y, Phi_k * <u, V> / T)."""
        logits = self.scales * self.model(batch.images)
        return F.cross_entropy(logits / self.params.temperature, batch.labels)

    def backward(self, batch: Batch) -> Tensor:
        """Clip the gradient; skip a batch of one sample, which BatchNorm1d cannot normalise."""
        if len(batch) == 1:
            return torch.zeros(())
        loss = super().backward(batch)
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        return loss


def refuse(config: RunConfig, params: FedGELAParams) -> None:
    """Refuse batches of one sample, which BatchNorm1d cannot normalise."""
    del params
    if config.batch_size == 1:
        raise ConfigError("batch-size=1 leaves fedgela nothing to train on: use at least 2")


METHOD = Method(
    title="FedGELA",
    paper="Fan et al., NeurIPS 2023",
    params=FedGELAParams,
    trainer=FedGELATrainer,
    server=FedAvg,
    heads=frame_head,
    refuse=refuse,
    tunable={"temperature": Range(0.05, 1.0)},
)
