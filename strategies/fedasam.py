"""FedASAM: Caldarola et al., "Improving Generalization in FL by Seeking Flat Minima", ECCV 2022.

Two gradients a step, on the same batch:

    g   = grad H(theta)
    eps = rho * T^2 g / (||T g||_2 + 1e-16),   T = |theta| + eta for weights, 1 for other tensors
    g'  = grad H(theta + eps)

and an ordinary SGD step from the unperturbed theta with g'. The norm is over the whole model, T
element-wise. ``scaled="all"`` with ``rho=0.5 eta=0`` is the lineage's version (T = |theta|
everywhere). The authors list stochastic weight averaging as a method of its own; it is not part of
this one. The server averages as FedAvg does.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedadb_app.config import Settings
from fedadb_app.data.batches import Batch
from fedadb_app.local_training import Trainer, perturbed
from fedadb_app.models.classifier import ImageClassifier
from fedadb_app.models.norm import frozen_running_statistics
from strategies.fedavg import FedAvg
from strategies.method import Method
from strategies.tunable import Range


class FedASAMParams(Settings):
    """Radius and adaptivity of the ascent step."""

    rho: Annotated[float, Field(ge=0, description="radius of the ascent step")] = 0.7
    eta: Annotated[float, Field(ge=0, description="added to the scale of weights")] = 0.2
    scaled: Annotated[
        Literal["weights", "all"],
        Field(
            description="which tensors are scaled by their own size: "
            '`weights` alone, or `all`; the lineage: `rho=0.5 eta=0 scaled="all"`'
        ),
    ] = "weights"


def scales(model: ImageClassifier, params: FedASAMParams) -> list[Tensor]:
    """Return T, one tensor (or a scalar 1) per parameter."""
    one = torch.ones((), device=next(model.parameters()).device)
    return [
        parameter.detach().abs() + params.eta if params.scaled == "all" or "weight" in name else one
        for name, parameter in model.named_parameters()
    ]


def ascent(gradients: list[Tensor], scale: list[Tensor], rho: float) -> list[Tensor]:
    """Return eps = rho * T^2 g / (||T g|| + 1e-16): T squared here, once in the norm."""
    norm = torch.stack([(t * g).norm() for t, g in zip(scale, gradients, strict=True)]).norm()
    return [rho / (norm + 1e-16) * t.square() * g for t, g in zip(scale, gradients, strict=True)]


class FedASAMTrainer(Trainer[FedASAMParams]):
    """Client half: the gradient is taken at the adaptively perturbed point."""

    def backward(self, batch: Batch) -> Tensor:
        """Leave g' in ``.grad``; the running statistics see the batch once, in the first pass."""
        loss = super().backward(batch)
        parameters = list(self.model.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        if len(gradients) != len(parameters):
            raise AssertionError("every parameter of a single-head model has a gradient")
        epsilon = ascent(gradients, scales(self.model, self.params), self.params.rho)
        self.model.zero_grad(set_to_none=True)
        with frozen_running_statistics(self.model), perturbed(parameters, epsilon):
            super().backward(batch)
        return loss


METHOD = Method(
    title="FedASAM",
    paper="Caldarola et al., ECCV 2022",
    params=FedASAMParams,
    trainer=FedASAMTrainer,
    only_sgd="the gradient of the perturbed point is that of a step of SGD",
    server=FedAvg,
    tunable={"rho": Range(0.05, 2.0), "eta": Range(0.01, 0.5)},
)
