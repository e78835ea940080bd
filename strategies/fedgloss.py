"""FedGloSS: Caldarola et al., "Beyond Local Sharpness: Global SAM for FL", CVPR 2025.

Sharpness-aware minimisation on the server, whose ascent step takes the last round's update in
place of the gradient that it would cost another round to know; on the client SAM and ADMM:

    broadcast  theta~ = theta^(t-1) - rho_t D / ||D||,    D = the last round's mean update
    client     eps = rho_l g / ||g||,  g = grad H(theta)
               gradient = grad H(theta + eps) + (theta - theta~ + v_k) / beta
               then v_k += theta_k - theta~
    server     s += sum_{k in K_t} (theta_k - theta~)
               D = mean_{k in K_t} (theta_k - theta~),    theta^t = theta^(t-1) + D + s / K

The perturbation is taken back before the update, which is why D is added to theta^(t-1). v_k and s
start at 0 (sigma_k = -v_k / beta is the paper's dual variable), and K counts all clients ever
admitted; nothing is perturbed in round 1. rho_t grows linearly to rho over `rho-rounds` rounds, and
so does rho_l. rho = rho-local = beta = 0 is FedAvg, with its mean by samples.

The authors' code (pietrocagnasso/fedgloss) divides the step of s by |K_t| once more, which FedDyn
and ADMM do not; from the smaller rho_0 it grows the client's and the server's radius by one list;
and its perturbation is of D with the sign of a pseudo-gradient, as here. Values are those of its
CIFAR-10 runs, which have no momentum and one local epoch. Buffers are averaged.
What FedDyn's docstring says of lost states and replies is true here.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedadb_app.aggregation import ClientUpdate, difference, squared_norm, weighted_mean
from fedadb_app.config import Settings
from fedadb_app.data.batches import Batch
from fedadb_app.local_training import Trainer, perturbed
from fedadb_app.models.classifier import StateDict
from fedadb_app.models.norm import frozen_running_statistics
from strategies.fedavg import FedAvg
from strategies.method import Method
from strategies.movements import advance, recalled, with_drift
from strategies.server import Broadcast, RoundInputs, ServerUpdate
from strategies.tunable import Range

_DIRECTION = "direction"


class FedGloSSParams(Settings):
    """Radii of the server's and the clients' ascent steps, and ADMM's penalty."""

    rho: Annotated[float, Field(ge=0, description="radius of the server's ascent step")] = 0.15
    rho_local: Annotated[float, Field(ge=0, description="radius of the clients' ascent steps")] = (
        0.15
    )
    rho_rounds: Annotated[
        int, Field(ge=0, description="rounds in which both radii grow from 0; `0` = none")
    ] = 0
    beta: Annotated[float, Field(ge=0, description="penalty of ADMM, a divisor; `0` = none")] = 10.0

    def growth(self, server_round: int) -> float:
        """Return what share of the radii a round has."""
        return min(1.0, server_round / self.rho_rounds) if self.rho_rounds else 1.0


class FedGloSSTrainer(Trainer[FedGloSSParams]):
    """Client half: SAM, with a linear and a quadratic term that have memory."""

    def begin(self) -> None:
        """Recall v_k."""
        self.start = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        self.memory = recalled(self.start, self.task.state)

    def backward(self, batch: Batch) -> Tensor:
        """Leave the gradient of the perturbed point, with ADMM's terms, in ``.grad``."""
        loss = super().backward(batch)
        radius = self.params.rho_local * self.params.growth(self.task.server_round)
        if radius > 0:
            self._at_perturbed_point(batch, radius)
        if self.params.beta > 0:
            for name, p in self.model.named_parameters():
                if p.grad is not None:
                    pull = p.detach() - self.start[name] + self.memory[name]
                    p.grad.add_(pull, alpha=1 / self.params.beta)
        return loss

    def _at_perturbed_point(self, batch: Batch, radius: float) -> None:
        held = [(p, p.grad) for p in self.model.parameters() if p.grad is not None]
        norm = torch.stack([g.norm() for _, g in held]).norm() + 1e-16
        epsilon = [radius / norm * g for _, g in held]
        self.model.zero_grad(set_to_none=True)
        with frozen_running_statistics(self.model), perturbed([p for p, _ in held], epsilon):
            super().backward(batch)

    def finish(self) -> dict[str, float]:
        """Advance v_k by this round's movement."""
        if self.params.beta > 0:
            advance(self.model, self.start, self.memory, self.task.state)
        return {}


class FedGloSS(FedAvg[FedGloSSParams]):
    """Server half: an ascent step before the round, the mean and the movements after it."""

    needs_each_update = True  # s is the sum of all v_k, which no client clips

    def broadcast(self, inputs: RoundInputs) -> Broadcast:
        """Send theta~; buffers as they are."""
        return Broadcast(self._perturbed(inputs))

    def _perturbed(self, inputs: RoundInputs) -> StateDict:
        names, model = inputs.parameter_names, inputs.model
        direction = {n: inputs.state.get(f"{_DIRECTION}/{n}") for n in names}
        moved = {n: d.double() for n, d in direction.items() if d is not None}
        radius = self.params.rho * self.params.growth(inputs.server_round)
        length = squared_norm(moved) ** 0.5
        if radius == 0 or length == 0:
            return model
        ahead = {n: (model[n] - radius / length * d).to(model[n].dtype) for n, d in moved.items()}
        return model | ahead

    def update(self, inputs: RoundInputs, updates: Sequence[ClientUpdate]) -> ServerUpdate:
        """Return theta^(t-1) + D + s / K, buffers averaged; keep D and s."""
        before, names, sent = inputs.model, inputs.parameter_names, self._perturbed(inputs)
        if self.params.beta == 0:
            mean = super().update(inputs, updates).model
        else:
            mean = weighted_mean([u.arrays for u in updates], [1 / len(updates)] * len(updates))
        step = difference(mean, sent, names)  # D
        model = dict(mean)
        if sent is not before:
            model |= {n: before[n] + step[n] for n in names}
        state = {f"{_DIRECTION}/{n}": d.to(before[n].dtype) for n, d in step.items()}
        if self.params.beta > 0:
            model, drift = with_drift(inputs, model, updates, sent)
            state |= drift
        return ServerUpdate(model, state=state)


METHOD = Method(
    title="FedGloSS",
    paper="Caldarola et al., CVPR 2025",
    params=FedGloSSParams,
    trainer=FedGloSSTrainer,
    only_sgd="its dual variables and perturbed gradients are those of steps of SGD",
    server=FedGloSS,
    tunable={
        "rho": Range(0.01, 0.5),
        "rho-local": Range(0.01, 0.5),
        "beta": Range(1.0, 1000.0),
    },
)
