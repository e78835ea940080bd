"""FedSOL: Lee et al., "Stabilized Orthogonal Learning with Proximal Restrictions", CVPR 2024.

The proximal loss compares with the frozen global model at temperature 3, over all classes,

    Gamma(theta) = mean over the batch of KL( softmax(z_g / 3) || softmax(z / 3) )

and only gives the direction in which the point of the gradient is moved; with u = grad Gamma:

    adaptive:  eps = rho * Lambda u / (||u||_2 + 1e-12)
    fixed:     eps = rho * u / (||u||_2 + 1e-12)
    u = 0 outside the perturbed part, so that ||u|| is that part's alone
    step with  g = grad H(theta + eps), from the unperturbed theta

Lambda = |theta - theta^(t-1)|, each slice along the first (output) axis scaled to unit L2 norm
(floor 1e-12), vectors as a whole: for W[o, ...], Lambda[o, j] = |W - W_g|[o, j] /
|| |W - W_g|[:, j] ||. At a round's first step student and teacher agree, and u is mere rounding
noise: with Gamma < 1e-7 the fixed variant takes eps = 0 (the adaptive one has Lambda = 0 there).
The server averages as FedAvg does.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedadb_app.config import Settings
from fedadb_app.data.batches import Batch
from fedadb_app.local_training import Trainer, frozen_copy, perturbed
from fedadb_app.models.norm import frozen_running_statistics
from strategies.fedavg import FedAvg
from strategies.method import Method
from strategies.tunable import Range

TEMPERATURE = 3.0
SAME = 1e-7
"""Below this proximal loss, student and teacher count as equal."""


class FedSOLParams(Settings):
    """Radius of the perturbation, its shape, and which part of the model it moves."""

    rho: Annotated[float, Field(ge=0, description="radius of the perturbation")] = 1.0
    variant: Annotated[
        Literal["adaptive", "fixed"],
        Field(
            description="`adaptive`: scaled by how far each weight has moved; "
            "`fixed`: the same for all"
        ),
    ] = "adaptive"
    perturb_head: Annotated[bool, Field(description="whether the head is perturbed")] = True
    perturb_body: Annotated[bool, Field(description="whether the extractor is perturbed")] = True


def proximal_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return Gamma of two logit matrices ``(B, C)``."""
    divergence: Tensor = F.kl_div(
        (student / TEMPERATURE).log_softmax(dim=1),
        (teacher / TEMPERATURE).log_softmax(dim=1),
        reduction="batchmean",
        log_target=True,
    )
    return divergence


def adaptivity(parameter: Tensor, reference: Tensor) -> Tensor:
    """Return Lambda of one tensor."""
    distance = (parameter - reference).abs()
    norm: Tensor = distance.norm() if distance.dim() == 1 else distance.norm(dim=0, keepdim=True)
    return distance / norm.clamp_min(1e-12)


class FedSOLTrainer(Trainer[FedSOLParams]):
    """Client half: the gradient is taken where the proximal loss is higher."""

    def begin(self) -> None:
        """Keep the global model as teacher and reference point."""
        self.teacher = frozen_copy(self.model)

    def backward(self, batch: Batch) -> Tensor:
        """Leave g in ``.grad``; the running statistics see the batch once, in the first pass."""
        epsilon = self.perturbation(batch)
        with (
            frozen_running_statistics(self.model),
            perturbed(list(self.model.parameters()), epsilon),
        ):
            return super().backward(batch)

    def perturbation(self, batch: Batch) -> list[Tensor]:
        """Return eps, a tensor per parameter."""
        params = self.params
        names, parameters = zip(*self.model.named_parameters(), strict=True)
        wanted = [
            params.perturb_head if name.startswith("heads.") else params.perturb_body
            for name in names
        ]
        with self.autocast():
            with torch.no_grad():
                teacher = self.teacher(batch.images)
            gamma = proximal_loss(self.model(batch.images), teacher)
        slope = torch.autograd.grad(gamma, parameters)
        direction = [u if w else torch.zeros_like(u) for u, w in zip(slope, wanted, strict=True)]
        length = torch.stack([u.norm() for u in direction]).norm() + 1e-12
        if params.variant == "fixed" and float(gamma.detach()) < SAME:
            length = length.new_full((), torch.inf)
        epsilon = []
        references = self.teacher.parameters()
        for p, reference, u in zip(parameters, references, direction, strict=True):
            scale = adaptivity(p.detach(), reference) if params.variant == "adaptive" else 1.0
            epsilon.append(params.rho * scale * u / length)
        return epsilon


METHOD = Method(
    title="FedSOL",
    paper="Lee et al., CVPR 2024",
    params=FedSOLParams,
    trainer=FedSOLTrainer,
    only_sgd="the gradient of the perturbed point is that of a step of SGD",
    server=FedAvg,
    tunable={"rho": Range(0.05, 3.0)},
)
