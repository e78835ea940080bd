"""What the global model finds in images it was not trained on: the server's, or a client's."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
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
    labels : numpy.ndarray
        True class of each sample, int64 ``(N,)``, in the order of the data.
    probabilities : numpy.ndarray
        Softmax of the logits, float32 ``(N, C)``. Like `labels` empty where no one model has been
        evaluated.
    correct_beside : Mapping[str, int]
        ``<name>_head`` for each further head that was asked for, and ``mean_of_heads`` for the mean
        of their probabilities and the evaluated head's: samples classified correctly.
    """

    correct: npt.NDArray[np.int64]
    total: npt.NDArray[np.int64]
    loss: float
    labels: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    probabilities: npt.NDArray[np.float32] = field(
        default_factory=lambda: np.empty((0, 0), np.float32)
    )
    correct_beside: Mapping[str, int] = field(default_factory=dict)

    @property
    def heads(self) -> dict[str, float]:
        """Percentage classified correctly, of what `correct_beside` has."""
        total = int(self.total.sum())
        return {name: 100 * count / total for name, count in self.correct_beside.items()}

    def correct_of(self, heads: Sequence[str]) -> list[int]:
        """Return how many samples each head finds; the evaluated one is the first of `heads`."""
        return [
            int(self.correct.sum()),
            *(self.correct_beside[f"{name}_head"] for name in heads[1:]),
        ]

    @property
    def accuracy(self) -> float:
        """Percentage of all samples classified correctly."""
        return float(100 * self.correct.sum() / self.total.sum())

    @property
    def class_accuracy(self) -> list[float]:
        """Percentage per class; not a number for a class without a test sample."""
        with np.errstate(invalid="ignore"):
            return [float(a) for a in 100 * self.correct / self.total]


@dataclass(frozen=True)
class ClientEvaluation:
    """What a client tells of its held-out samples, in `validation` of those that choose a round.

    `metrics` and `classes` are those that may leave it (`fedadb_app.disclosure`); `personal`, where
    it was asked, how many samples each head finds before and after fine-tuning.
    """

    num_examples: int
    num_correct: int
    loss: float
    classes: tuple[Sequence[int], Sequence[int]] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    validation: "ClientEvaluation | None" = None
    personal: tuple[Sequence[int], Sequence[int]] | None = None


def evaluate(
    model: ImageClassifier, data: LocalData, config: RunConfig, other_heads: Sequence[str] = ()
) -> Evaluation:
    """Evaluate the model's evaluated head in evaluation mode, on `evaluation_batches`.

    Parameters
    ----------
    model : ImageClassifier
        Left in evaluation mode.
    data : LocalData
        At least one sample.
    config : RunConfig
        For ``norm``, ``batch-size`` and ``precision``.
    other_heads : Sequence[str]
        Heads that are evaluated beside it, in the same pass through the extractor.
    """
    beside: Counter[str] = Counter()
    correct = np.zeros(data.num_classes, np.int64)
    loss = 0.0
    probabilities = np.empty((len(data), data.num_classes), np.float32)
    model.eval()
    with torch.inference_mode(), autocast(config, data.device):
        for batch in evaluation_batches(model, data, config):
            truth = batch.labels
            features = model.features(batch.images)
            logits = model.heads[model.evaluated_head](features).float()
            loss += float(F.cross_entropy(logits, truth, reduction="sum"))
            right = truth[logits.argmax(dim=1) == truth]
            correct += torch.bincount(right, minlength=data.num_classes).cpu().numpy()
            probabilities[batch.indices] = logits.softmax(dim=1).cpu().numpy()
            if other_heads:
                others = {name: model.heads[name](features).float() for name in other_heads}
                beside.update(_correct_beside(logits, others, truth))
    total, labels = (known.cpu().numpy() for known in (data.class_counts, data.labels))
    return Evaluation(correct, total, loss / len(data), labels, probabilities, beside)


def _correct_beside(logits: Tensor, others: Mapping[str, Tensor], truth: Tensor) -> dict[str, int]:
    mean = torch.stack([z.softmax(dim=1) for z in (logits, *others.values())]).mean(dim=0)
    scores = {f"{name}_head": z for name, z in others.items()} | {"mean_of_heads": mean}
    return {name: int((score.argmax(dim=1) == truth).sum()) for name, score in scores.items()}


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
