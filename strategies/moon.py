"""MOON: Li et al., "Model-Contrastive Federated Learning", CVPR 2021.

With z, z_glob and z_prev the features of a sample by the local model, by the received global one
and by the client's own model at the end of its last round,

    L = H(y, logits) - mu * log( exp(sim(z, z_glob) / tau)
                                 / (exp(sim(z, z_glob) / tau) + exp(sim(z, z_prev) / tau)) )

sim is the cosine similarity, the mean is over the batch, and the two other models are frozen and
in evaluation mode, as in the authors' code. z is the input of the head: the paper puts a projection
of two layers in between, which would make the net another than that of all other methods; the
authors' code has that as an option too. A client in its first round has no model of its own; the
authors take the initial one, for which the term has no gradient where the two are equal, so that
it is left out. mu = 0 is FedAvg bit by bit. The server averages as FedAvg does.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedadb_app.config import Settings
from fedadb_app.data.batches import Batch
from fedadb_app.local_training import Trainer, frozen_copy
from fedadb_app.models.classifier import ImageClassifier
from strategies.fedavg import FedAvg
from strategies.method import Method
from strategies.tunable import Range


class MOONParams(Settings):
    """Weight and temperature of the contrastive term."""

    mu: Annotated[float, Field(ge=0, description="weight of the contrastive term")] = 1.0
    temperature: Annotated[float, Field(gt=0, description="tau of the contrastive term")] = 0.5


def contrast(features: Tensor, towards: Tensor, away: Tensor, temperature: float) -> Tensor:
    """Return the contrastive term of feature matrices ``(B, d)``, a scalar."""
    near, far = (F.cosine_similarity(features, z, dim=1) / temperature for z in (towards, away))
    return F.softplus(far - near).mean()  # -log(e^near / (e^near + e^far))


class MOONTrainer(Trainer[MOONParams]):
    """Client half: cross-entropy, and features near the global model's and not the old ones."""

    def begin(self) -> None:
        """Keep the global model, and take up the client's own of its last round."""
        self.others: tuple[ImageClassifier, ImageClassifier] | None = None
        if self.params.mu > 0 and self.task.state:
            previous = frozen_copy(self.model)
            previous.load_state_dict(self.task.state)
            self.others = (frozen_copy(self.model), previous)

    def loss(self, batch: Batch) -> Tensor:
        """Return H plus mu times the contrastive term, if there is an own model."""
        if self.others is None:
            return super().loss(batch)
        features = self.model.features(batch.images)
        logits = self.model.heads[self.model.evaluated_head](features)
        with torch.no_grad():
            towards, away = (model.features(batch.images) for model in self.others)
        term = contrast(features, towards, away, self.params.temperature)
        return F.cross_entropy(logits, batch.labels) + self.params.mu * term

    def finish(self) -> dict[str, float]:
        """Keep the model for the client's next round."""
        if self.params.mu > 0:
            self.task.state.update(self.model.state_copy())
        return {}


METHOD = Method(
    title="MOON",
    paper="Li et al., CVPR 2021",
    params=MOONParams,
    trainer=MOONTrainer,
    server=FedAvg,
    tunable={"mu": Range(0.1, 10.0), "temperature": Range(0.1, 1.0)},
)
