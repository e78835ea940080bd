"""Accuracy of the global model on the whole global test set."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from fedadb_app.config import RunConfig
from fedadb_app.data.batches import normalise
from fedadb_app.local_training import autocast
from fedadb_app.models import ImageClassifier


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


def evaluate(
    model: ImageClassifier,
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.int64],
    num_classes: int,
    config: RunConfig,
) -> Evaluation:
    """Evaluate the model's evaluated head in evaluation mode, in file order.

    With ``norm="batch-local"`` accuracy depends on the make-up of the test batches, so these have
    the training batch size and come from one fixed permutation.

    Parameters
    ----------
    model : ImageClassifier
        Left in evaluation mode.
    images : numpy.ndarray
        uint8, ``(N, channels, height, width)``.
    labels : numpy.ndarray
        int64, ``(N,)``.
    num_classes : int
        C.
    config : RunConfig
        For ``norm``, ``batch-size`` and ``precision``.
    """
    device = next(model.parameters()).device
    order = np.arange(len(labels))
    size = model.evaluation_batch
    if config.norm == "batch-local":
        order = np.random.Generator(np.random.PCG64(0)).permutation(len(labels))
        size = config.batch_size
    correct = np.zeros(num_classes, np.int64)
    loss = 0.0
    model.eval()
    with torch.inference_mode(), autocast(config, device):
        for start in range(0, len(labels), size):
            rows = order[start : start + size]
            truth = torch.from_numpy(labels[rows]).to(device)
            logits = model(normalise(torch.from_numpy(images[rows]), device)).float()
            loss += float(F.cross_entropy(logits, truth, reduction="sum"))
            right = truth[logits.argmax(dim=1) == truth]
            correct += torch.bincount(right, minlength=num_classes).cpu().numpy()
    total = np.bincount(labels, minlength=num_classes).astype(np.int64)
    return Evaluation(correct, total, loss / len(labels))
