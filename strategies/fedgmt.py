"""FedGMT: Li et al., "One Arrow, Two Hawks: SAM for FL via Global Model Trajectory", ICML 2025.

The server keeps a moving average e of the global models, their trajectory, and client k the sum v_k
of its own movements (the paper's dual variable is u_k = -v_k / beta):

    client   L = H + gamma * mean over the batch of KL( softmax(z_e / tau) || softmax(z / tau) )
             gradient = grad L + v_k / beta,    then v_k += theta_k - theta^(t-1)
    server   s += sum_{k in K_t} (theta_k - theta^(t-1))
             theta^t = mean_{k in K_t} theta_k + s / K
             e^t = alpha e^(t-1) + (1 - alpha) theta^t,    e^0 = theta^0

v_k and s start at 0, and K counts all clients ever admitted. gamma = 0 and beta = 0 (no dual
variable) is FedAvg, with its mean by samples. The paper adds the mean of the participants' own dual
variables; its authors' code (harrylee999/FL-SAM), like this one, that of all clients: the two agree
where all take part. tau is in their example, not in the paper's equation; whether they multiply by
tau^2 could not be read, and is not done here. Their averaged model keeps its first running
statistics; here they are averaged as its parameters are. beta here divides a gradient, so that
tau = 3, beta = 10, alpha = 0.95, gamma = 1, theirs for a learning rate of 0.01, carry over.

What FedDyn's docstring says of lost states and replies is true here.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedadb_app.aggregation import ClientUpdate, weighted_mean
from fedadb_app.config import Settings
from fedadb_app.data.batches import Batch
from fedadb_app.local_training import Attachment, Trainer, frozen_copy
from strategies.fedavg import FedAvg
from strategies.method import Method
from strategies.movements import with_drift
from strategies.server import Broadcast, RoundInputs, ServerUpdate
from strategies.tunable import Range

_TRAJECTORY = "trajectory"


class FedGMTParams(Settings):
    """The trajectory, the pull of it, and the dual variable."""

    alpha: Annotated[
        float, Field(ge=0, lt=1, description="how much of the averaged model is kept each round")
    ] = 0.95
    gamma: Annotated[
        float, Field(ge=0, description="weight of the divergence from the averaged model")
    ] = 1.0
    temperature: Annotated[float, Field(gt=0, description="tau of the divergence")] = 3.0
    beta: Annotated[
        float, Field(ge=0, description="what the dual variable is divided by; `0` = none")
    ] = 10.0


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return KL(teacher || student) of logits ``(B, C)``, mean over the batch."""
    found: Tensor = F.kl_div(
        (student / temperature).log_softmax(dim=1),
        (teacher / temperature).log_softmax(dim=1),
        reduction="batchmean",
        log_target=True,
    )
    return found


class FedGMTTrainer(Trainer[FedGMTParams]):
    """Client half: stay near the averaged model's outputs, with memory of one's movements."""

    def begin(self) -> None:
        """Take up the averaged model, and recall v_k."""
        self.start = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        state = self.task.state
        self.memory = {n: state[n].to(p.device) for n, p in self.start.items() if n in state}
        if self.params.gamma > 0:
            self.teacher = frozen_copy(self.model)  # e^0 = theta^0, before there is another
            if sent := self.task.attachments.get(_TRAJECTORY):
                self.teacher.load_state_dict(dict(sent.tensors))

    def loss(self, batch: Batch) -> Tensor:
        """Return L."""
        if self.params.gamma == 0:
            return super().loss(batch)
        logits = self.model(batch.images)
        with torch.no_grad():
            teacher = self.teacher(batch.images)
        apart = divergence(logits, teacher, self.params.temperature)
        return F.cross_entropy(logits, batch.labels) + self.params.gamma * apart

    def backward(self, batch: Batch) -> Tensor:
        """Add v_k / beta to the gradient."""
        loss = super().backward(batch)
        if self.params.beta > 0:
            for name, p in self.model.named_parameters():
                if p.grad is not None and name in self.memory:
                    p.grad.add_(self.memory[name], alpha=1 / self.params.beta)
        return loss

    def finish(self) -> dict[str, float]:
        """Advance v_k by this round's movement."""
        if self.params.beta > 0:
            for name, p in self.model.named_parameters():
                moved = p.detach() - self.start[name]
                self.task.state[name] = (self.memory.get(name, 0) + moved).cpu()
        return {}


class FedGMT(FedAvg[FedGMTParams]):
    """Server half: the mean, the movements of all clients, and the moving average."""

    needs_each_update = True  # s is the sum of all v_k, which no client clips

    def broadcast(self, inputs: RoundInputs) -> Broadcast:
        """Send the averaged model beside the global one, once they differ."""
        trajectory = inputs.kept(_TRAJECTORY)
        if not trajectory or self.params.gamma == 0:
            return Broadcast(inputs.model)
        return Broadcast(inputs.model, {_TRAJECTORY: Attachment(tensors=trajectory)})

    def update(self, inputs: RoundInputs, updates: Sequence[ClientUpdate]) -> ServerUpdate:
        """Return mean_k theta_k + s / K, buffers averaged; advance s and e."""
        before = inputs.model
        state: dict[str, Tensor] = {}
        if self.params.beta == 0:
            model = super().update(inputs, updates).model
        else:
            plain = [1 / len(updates)] * len(updates)
            model = weighted_mean([u.arrays for u in updates], plain)
            model, state = with_drift(inputs, model, updates, before)
        if self.params.gamma > 0:
            alpha = self.params.alpha
            average = inputs.kept(_TRAJECTORY) or before
            kept = weighted_mean([average, model], [alpha, 1 - alpha])
            state |= {f"{_TRAJECTORY}/{n}": t.to(before[n].dtype) for n, t in kept.items()}
        return ServerUpdate(model, state=state)


METHOD = Method(
    title="FedGMT",
    paper="Li et al., ICML 2025",
    params=FedGMTParams,
    trainer=FedGMTTrainer,
    only_sgd="its dual variables stand for gradients, which AdamW's steps do not follow",
    server=FedGMT,
    tunable={
        "alpha": Range(0.5, 0.99, log=False),
        "gamma": Range(0.1, 5.0),
        "beta": Range(1.0, 100.0),
    },
)
