"""FedDyn: Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021.

Client k keeps an estimate g_k of its local gradient, here as v_k = -g_k / alpha_k (the form of the
authors' code, which needs no division by alpha on the server):

    client   gradient = grad H + alpha_k (theta - theta^(t-1) + v_k)
             then v_k += theta_k - theta^(t-1)
    server   s += sum_{k in K_t} (theta_k - theta^(t-1))
             theta^t = mean_{k in K_t} theta_k + s / K

v_k and s start at 0, s is the sum of all v_k, and K counts all clients, not the participants.
Where nodes have their own data, K is the number of nodes ever admitted, as s is the sum over them:
one that has left still counts, and one that returns under a new id is two, as its movements are.
``official``: alpha_k = alpha * (mean n) / n_k and plain means; ``lineage``: one alpha, the mean of
theta_k by samples. alpha = 0 is FedAvg by definition (the v-form's limit would not be). Only
trained parameters enter; buffers are averaged. As in the authors' code, `clip` bounds the gradient
of loss and linear term, grad H + alpha_k (v_k - theta^(t-1)), before alpha_k theta is added.

With a learning rate that decays to 0 the clients stop moving while s / K is still added every
round, so theta drifts; look at ``last50_accuracy`` and at ``plain_mean`` in diagnostics.csv.
A client that lost its state starts again from v_k = 0; where a reply is lost or refused, the
client has advanced v_k and the server has not. Either way s and the sum of all v_k part from
then on.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from fedadb_app.aggregation import ClientUpdate, weighted_mean
from fedadb_app.config import Settings
from fedadb_app.data.batches import Batch
from fedadb_app.local_training import Attachment, Trainer
from strategies.fedavg import FedAvg
from strategies.method import Method
from strategies.movements import advance, recalled, with_drift
from strategies.server import Broadcast, RoundInputs, ServerUpdate
from strategies.tunable import Range

_MEAN = "feddyn"


class FedDynParams(Settings):
    """Strength of the dynamic regularisation, its variant, and gradient clipping (0 = none)."""

    alpha: Annotated[
        float, Field(ge=0, description="strength of the regularisation; `0` is FedAvg")
    ] = 0.1
    variant: Annotated[
        Literal["official", "lineage"],
        Field(
            description="`official`: alpha scaled by the client's size, and plain means; "
            "`lineage`: one alpha, and means by samples"
        ),
    ] = "official"
    clip: Annotated[
        float,
        Field(
            ge=0,
            description="largest L2 norm of the gradient of loss and linear term; `0` = any",
        ),
    ] = 0.0


class FedDynTrainer(Trainer[FedDynParams]):
    """Client half: a linear and a quadratic term, with memory."""

    def begin(self) -> None:
        """Recall v_k and fix alpha_k."""
        self.start = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        self.memory = recalled(self.start, self.task.state)  # v_k
        self.alpha = self.params.alpha
        if self.params.variant == "official":
            mean = self.task.attachments[_MEAN].scalars["mean-examples"]
            self.alpha *= mean / len(self.task.data)

    def backward(self, batch: Batch) -> Tensor:
        """Add alpha_k (theta - theta^(t-1) + v_k) to the gradient."""
        loss = super().backward(batch)
        start, memory = self.start, self.memory
        if self.params.clip == 0:
            self._pull(lambda name, p: p - start[name] + memory[name])
            return loss
        self._pull(lambda name, p: memory[name] - start[name])
        nn.utils.clip_grad_norm_(self.model.parameters(), self.params.clip)
        self._pull(lambda name, p: p)
        return loss

    def _pull(self, direction: Callable[[str, Tensor], Tensor]) -> None:
        if self.alpha > 0:
            for name, p in self.model.named_parameters():
                if p.grad is not None:
                    p.grad.add_(direction(name, p.detach()), alpha=self.alpha)

    def finish(self) -> dict[str, float]:
        """Advance v_k by this round's movement."""
        advance(self.model, self.start, self.memory, self.task.state)
        return {}


class FedDyn(FedAvg[FedDynParams]):
    """Server half: the mean and the accumulated drift of all clients."""

    needs_each_update = True  # s is the sum of all v_k, which no client clips

    def broadcast(self, inputs: RoundInputs) -> Broadcast:
        """Send the mean n_k, by which the official variant scales alpha."""
        mean = {"mean-examples": inputs.mean_examples}
        return Broadcast(inputs.model, {_MEAN: Attachment(scalars=mean)})

    def update(self, inputs: RoundInputs, updates: Sequence[ClientUpdate]) -> ServerUpdate:
        """Return mean_k theta_k + s / K, buffers averaged; evaluate the plain mean beside it."""
        mean = super().update(inputs, updates).model
        if self.params.alpha == 0:
            return ServerUpdate(mean, also_evaluated={"plain_mean": mean})
        if self.params.variant == "official":
            mean = weighted_mean([u.arrays for u in updates], [1 / len(updates)] * len(updates))
        model, drift = with_drift(inputs, mean, updates, inputs.model)
        return ServerUpdate(model, state=drift, also_evaluated={"plain_mean": mean})


METHOD = Method(
    title="FedDyn",
    paper="Acar et al., ICLR 2021",
    params=FedDynParams,
    trainer=FedDynTrainer,
    only_sgd="its memory stands for gradients, and AdamW's rescaled steps do not follow them",
    server=FedDyn,
    tunable={"alpha": Range(1e-3, 0.1)},
)
