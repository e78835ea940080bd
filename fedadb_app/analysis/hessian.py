"""Sharpness of a global model: the leading eigenvalues of its loss's Hessian (paper, section 6).

The loss is the mean cross-entropy of the evaluated head on training data, in evaluation mode and
without weight decay. The paper finds the five leading eigenvalues by power iteration; here ARPACK's
Lanczos iteration (SciPy's ``eigsh``) finds them from the same Hessian-vector products (Pearlmutter,
1994), in far fewer of them, and takes the algebraically largest, where power iteration would take
a large negative one too.

Products are computed in float32, five times faster on a CPU than float64, and added up in float64:
their relative error, about 1e-6, is far below the tolerance asked for.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import Tensor
from torch.nn import functional as F

from fedadb_app.analysis.runs import SavedRun
from fedadb_app.config import RunConfig
from fedadb_app.data.batches import LocalData
from fedadb_app.errors import TrainingError
from fedadb_app.evaluation import evaluate, evaluation_batches
from fedadb_app.models.classifier import ImageClassifier, StateDict
from fedadb_app.randomness import numpy_generator

SAMPLE_SIZE = 1024
"""Training images that a spectrum is computed on: twice as many change lambda_1 by up to 4 %."""

EIGENVALUES = 5
"""How many of them the paper reports."""

_TOLERANCE = 1e-4
"""Relative residual at which an eigenvalue counts as found; its own error is far smaller."""


@dataclass(frozen=True)
class Spectrum:
    """The leading end of a Hessian's spectrum.

    Attributes
    ----------
    eigenvalues : list[float]
        Descending; the first is lambda_1, the sharpness.
    eigenvectors : list[dict[str, torch.Tensor]]
        Of each, orthonormal over all tensors together, by parameter name.
    accuracy : float
        Percentage of the same samples that the model classifies correctly.
    """

    eigenvalues: list[float]
    eigenvectors: list[StateDict]
    accuracy: float

    @property
    def anisotropy(self) -> float:
        """lambda_1 / lambda_5; infinite if the last eigenvalue is not positive."""
        first, last = self.eigenvalues[0], self.eigenvalues[-1]
        return first / last if last > 0 else math.inf


def training_sample(run: SavedRun) -> LocalData:
    """Draw 1024 images from the training part of a run's data set, all clients' together.

    All, if there are no more. The run's seed determines the draw: methods of one seed get the same.

    Raises
    ------
    DataError
        If the training data are not on this machine.
    """
    dataset = run.dataset
    order = numpy_generator(run.config.seed, "training sample").permutation(
        len(dataset.train_labels)
    )
    return LocalData.from_arrays(
        dataset.train_images,
        dataset.train_labels,
        order[:SAMPLE_SIZE],
        dataset.num_classes,
        run.device,
        preparation=run.preparation,
    )


def top_eigenpairs(model: ImageClassifier, data: LocalData, config: RunConfig) -> Spectrum:
    """Find the five leading eigenvalues and eigenvectors of the loss's Hessian.

    It is the Hessian over the parameters that the evaluated head depends on: over others, such as
    FedADB's second head, it is zero.

    Parameters
    ----------
    model : ImageClassifier
        Left in evaluation mode, its weights as they were.
    data : LocalData
        At least one sample, on the model's device.
    config : RunConfig
        The run's, for the batches and the precision that it evaluates in.

    Raises
    ------
    TrainingError
        If the model has no finite Hessian, or the iteration does not converge.
    """
    model.eval()
    parameters = _evaluated_parameters(model)
    size = sum(parameter.numel() for parameter in parameters.values())

    def multiply(vector: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        product = hessian_vector_product(model, data, config, _unflatten(vector, parameters))
        flat = torch.cat([part.flatten() for part in product.values()]).cpu().numpy()
        if not np.isfinite(flat).all():
            raise TrainingError(
                "the loss on the training data has no finite Hessian: the model has diverged"
            )
        return flat

    hessian = LinearOperator((size, size), matvec=multiply, dtype=np.float64)
    start = numpy_generator(0, "lanczos").standard_normal(size)
    try:
        values, vectors = eigsh(hessian, EIGENVALUES, which="LA", v0=start, tol=_TOLERANCE)
    except ArpackError as error:
        raise TrainingError(f"the Hessian's eigenvalues cannot be found: {error}") from error
    descending = np.argsort(values)[::-1]
    return Spectrum(
        [float(values[i]) for i in descending],
        [_unflatten(vectors[:, i], parameters) for i in descending],
        evaluate(model, data, config).accuracy,
    )


def hessian_vector_product(
    model: ImageClassifier, data: LocalData, config: RunConfig, vector: Mapping[str, Tensor]
) -> StateDict:
    """Return H v by double backpropagation, batch by batch.

    Parameters
    ----------
    model : ImageClassifier
        In evaluation mode.
    data : LocalData
        The samples that the loss is the mean over.
    config : RunConfig
        For the batches, which matter to ``norm="batch-local"`` alone.
    vector : Mapping[str, torch.Tensor]
        v, by parameter name.

    Returns
    -------
    dict[str, torch.Tensor]
        float64, names and shapes as in `vector`.
    """
    parameters = [model.get_parameter(name) for name in vector]
    product = {name: torch.zeros_like(part, dtype=torch.float64) for name, part in vector.items()}
    for batch in evaluation_batches(model, data, config):
        loss = F.cross_entropy(model(batch.images), batch.labels, reduction="sum") / len(data)
        gradient = torch.autograd.grad(loss, parameters, create_graph=True)
        parts = torch.autograd.grad(gradient, parameters, list(vector.values()))
        for total, part in zip(product.values(), parts, strict=True):
            total += part
    return product


def _evaluated_parameters(model: ImageClassifier) -> StateDict:
    """Return the parameters that the evaluated head's logits depend on, by name."""
    head = f"heads.{model.evaluated_head}."
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if name.startswith(("features.", head))
    }


def _unflatten(vector: npt.NDArray[np.float64], like: StateDict) -> StateDict:
    """Cut a vector into tensors of the shapes, type and device of others."""
    sizes = [tensor.numel() for tensor in like.values()]
    parts = torch.split(torch.from_numpy(vector), sizes)
    return {
        name: part.reshape(tensor.shape).to(tensor)
        for (name, tensor), part in zip(like.items(), parts, strict=True)
    }
