"""Accuracy of the global model on a test set: the server's, or what a client holds out."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from fedadb_app.config import RunConfig
from fedadb_app.data.batches import Batch, LocalData
from fedadb_app.local_training import autocast
from fedadb_app.models.classifier import ImageClassifier


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation found.

    Attributes
    ----------
    correct, total : numpy.ndarray
        Per class: samples classified correctly, and samples; int64 ``(C,)``.
    loss : float
        Mean cross-entropy.
    """

    correct: npt.NDArray[np.int64]
    total: npt.NDArray[np.int64]
    loss: float

    @property
    def accuracy(self) -> float:
        """Percentage of all samples classified correctly."""
        return float(100 * self.correct.sum() / self.total.sum())

    @property
    def class_accuracy(self) -> list[float]:
        """Percentage per class; not a number for a class without a test sample."""
        with np.errstate(invalid="ignore"):
            return [float(a) for a in 100 * self.correct / self.total]


def evaluate(model: ImageClassifier, data: LocalData, config: RunConfig) -> Evaluation:
    """Evaluate the model's evaluated head in evaluation mode, on `evaluation_batches`.

    Parameters
    ----------
    model : ImageClassifier
        Left in evaluation mode.
    data : LocalData
        At least one sample.
    config : RunConfig
        For ``norm``, ``batch-size`` and ``precision``.
    """
    correct = np.zeros(data.num_classes, np.int64)
    loss = 0.0
    model.eval()
    with torch.inference_mode(), autocast(config, data.device):
        for batch in evaluation_batches(model, data, config):
            truth = batch.labels
            logits = model(batch.images).float()
            loss += float(F.cross_entropy(logits, truth, reduction="sum"))
            right = truth[logits.argmax(dim=1) == truth]
            correct += torch.bincount(right, minlength=data.num_classes).cpu().numpy()
    total = data.class_counts.cpu().numpy()
    return Evaluation(correct, total, loss / len(data))


def evaluation_batches(
    model: ImageClassifier, data: LocalData, config: RunConfig
) -> Iterator[Batch]:
    """Yield all samples in the batches that a run evaluates them in: in file order.

    With ``norm="batch-local"`` a result depends on the make-up of the batches, so these have the
    training batch size and come from one fixed permutation.
    """
    order = torch.arange(len(data))
    size = model.evaluation_batch
    if config.norm == "batch-local":
        fixed = np.random.Generator(np.random.PCG64(0)).permutation(len(data))
        order, size = torch.from_numpy(fixed), config.batch_size
    for rows in torch.split(order, size):
        yield Batch(data, rows)
