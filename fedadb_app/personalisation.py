"""Personalisation: after the last round a client trains its own copy of the global model on.

From the model that it has been sent to evaluate, E_p epochs over its own training samples, on

    L = sum_h H(y, psi_h(phi(x))),    h: the heads that are evaluated, one for most methods

with nothing of the method in it: fine-tuning, the plainest of the ways that Yu et al. compare
("Salvaging Federated Learning by Local Adaptation", 2020). Batches and optimiser are the run's. The
learning rate is its ``learning-rate``, without warm-up and decay: with 0.99 a round, after a few
hundred rounds nothing would move. A batch of one sample is skipped where the model would normalise
it by its own statistics.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedadb_app.aggregation import all_finite
from fedadb_app.config import RunConfig, Settings
from fedadb_app.data.batches import Batch
from fedadb_app.data.clients import ClientData
from fedadb_app.evaluation import evaluate
from fedadb_app.local_training import LocalTask, Trainer
from fedadb_app.models.classifier import ImageClassifier


class FineTuning(Trainer[Settings]):
    """Local epochs on the cross-entropy of some heads.

    Parameters
    ----------
    model : ImageClassifier
        What a client was sent; trained in place.
    config : RunConfig
        For ``personalise-epochs`` and how a client trains.
    client : int
        The client's identity.
    data : ClientData
        What it trains on.
    heads : Sequence[str]
        The heads by name.
    """

    def __init__(
        self,
        model: ImageClassifier,
        config: RunConfig,
        client: int,
        data: ClientData,
        heads: Sequence[str],
    ) -> None:
        rounds = config.num_server_rounds
        task = LocalTask(
            client=client,
            server_round=rounds + 1,  # its batches are those of no round
            num_rounds=rounds,
            learning_rate=config.learning_rate,
            config=config.model_copy(update={"local_epochs": config.personalise_epochs}),
            data=data.train,
        )
        super().__init__(model, task, Settings())
        self._heads = heads

    def loss(self, batch: Batch) -> Tensor:
        """Return the sum of the heads' cross-entropies."""
        features = self.model.features(batch.images)
        losses = [F.cross_entropy(self.model.heads[h](features), batch.labels) for h in self._heads]
        return torch.stack(losses).sum()

    def backward(self, batch: Batch) -> Tensor:
        """Skip a single sample that would be normalised by itself."""
        if len(batch) == 1 and self.model.has_batch_statistics():
            return torch.zeros(())
        return super().backward(batch)


def personalised(
    model: ImageClassifier,
    config: RunConfig,
    client: int,
    data: ClientData,
    heads: Sequence[str],
) -> list[int] | None:
    """Fine-tune a model in place; return how many held-out samples each head then finds.

    Parameters
    ----------
    model, config, client, data, heads
        As of `FineTuning`; of the heads the evaluated one is the first.

    Returns
    -------
    list[int] or None
        In the order of the heads; None if the training has diverged.
    """
    FineTuning(model, config, client, data, heads).train()
    if not all_finite(model.state_dict()):
        return None
    return evaluate(model, data.held_out, config, heads[1:]).correct_of(heads)
