"""SCAFFOLD: Karimireddy et al., "Stochastic Controlled Averaging for FL", ICML 2020.

Client k and the server keep control variates c_k and c, which start at 0 (option II of the paper):

    client   gradient = grad H - c_k + c
             c_k^+ = c_k - c + (theta^(t-1) - theta_k) / l_k
    server   theta^t = theta^(t-1) + eta_g mean_{k in K_t} (theta_k - theta^(t-1))
             c <- c + (1 / K) sum_{k in K_t} (c_k^+ - c_k)

so that c stays the mean of all c_k, and the first round is FedAvg with equal weights. l_k is how
far S_k steps of a constant gradient 1 go: eta_t S_k in the paper, which has no momentum, and
eta_t sum_{i=1..S_k} (1 - m^i) / (1 - m) with momentum m; without that c_k would be up to
1 / (1 - m) times the gradient. As S_k follows from n_k, the server computes c_k^+ - c_k from
theta_k, and a client sends nothing beside its model; c is sent to the clients. Weight decay is a
part of the client's gradient. Means are plain, as in the paper; only trained parameters enter,
buffers are averaged.

A client that lost its state starts again from c_k = 0, and one whose reply was lost or refused has
advanced c_k where the server has not: from then on c and the mean of all c_k differ.
"""

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field
from torch import Tensor

from fedadb_app.aggregation import ClientUpdate, difference, weighted_mean
from fedadb_app.config import RunConfig, Settings
from fedadb_app.data.batches import Batch
from fedadb_app.local_training import Attachment, Trainer
from strategies.fedavg import FedAvg
from strategies.method import Method
from strategies.server import Broadcast, RoundInputs, ServerUpdate, Workbench
from strategies.tunable import Range

_CONTROL = "control"


class SCAFFOLDParams(Settings):
    """The server's step size."""

    server_learning_rate: Annotated[
        float, Field(gt=0, description="eta_g, by which the mean update is multiplied")
    ] = 1.0


def reach(config: RunConfig, rate: float, samples: int) -> float:
    """Return l_k: how far a round's local steps move a parameter whose gradient is always -1."""
    momentum = config.momentum
    steps = config.local_epochs * -(-samples // config.batch_size)
    if momentum == 0:
        return rate * steps
    geometric = momentum * (1 - momentum**steps) / (1 - momentum)  # sum of m^i
    return rate * (steps - geometric) / (1 - momentum)


class SCAFFOLDTrainer(Trainer[SCAFFOLDParams]):
    """Client half: the gradient is corrected by c - c_k."""

    def begin(self) -> None:
        """Recall c_k, and take c as it was sent."""
        self.start = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        sent = self.task.attachments.get(_CONTROL)
        control = {} if sent is None else sent.tensors
        zeros = {n: p.new_zeros(p.shape) for n, p in self.start.items()}
        self.correction = {
            n: control.get(n, zero).to(zero) - self.task.state.get(n, zero).to(zero)
            for n, zero in zeros.items()
        }  # c - c_k

    def backward(self, batch: Batch) -> Tensor:
        """Add c - c_k to the gradient."""
        loss = super().backward(batch)
        for name, p in self.model.named_parameters():
            if p.grad is not None:
                p.grad.add_(self.correction[name])
        return loss

    def finish(self) -> dict[str, float]:
        """Advance c_k to what the round's mean gradient was."""
        length = reach(self.task.config, self.task.learning_rate, len(self.task.data))
        for name, p in self.model.named_parameters():
            moved = (self.start[name] - p.detach()) / length
            self.task.state[name] = (moved - self.correction[name]).cpu()
        return {}


class SCAFFOLD(FedAvg[SCAFFOLDParams]):
    """Server half: the plain mean, and the control variate of all clients.

    Parameters
    ----------
    params : SCAFFOLDParams
        The method's own values.
    config : RunConfig
        For the number and the size of local steps.
    """

    needs_each_update = True  # c_k^+ - c_k depends on each client's number of steps

    def __init__(self, params: SCAFFOLDParams, config: RunConfig) -> None:
        super().__init__(params)
        self._config = config

    @classmethod
    def of_run(cls, params: SCAFFOLDParams, bench: Workbench) -> Self:
        """Make the half of a run."""
        return cls(params, bench.config)

    def broadcast(self, inputs: RoundInputs) -> Broadcast:
        """Send c, once there is one."""
        control = inputs.kept(_CONTROL)
        sent = {_CONTROL: Attachment(tensors=control)} if control else {}
        return Broadcast(inputs.model, sent)

    def update(self, inputs: RoundInputs, updates: Sequence[ClientUpdate]) -> ServerUpdate:
        """Return theta^(t-1) + eta_g (mean - theta^(t-1)), buffers averaged; advance c."""
        names, rate = inputs.parameter_names, self.params.server_learning_rate
        plain = [1 / len(updates)] * len(updates)
        mean = weighted_mean([u.arrays for u in updates], plain)
        if rate != 1:
            step = difference(mean, inputs.model, names)
            mean |= {n: inputs.model[n] + rate * step[n] for n in names}
        local_rate = self._config.learning_rate_at(inputs.server_round)
        gradients = weighted_mean(
            [difference(inputs.model, u.arrays, names) for u in updates],
            [1 / reach(self._config, local_rate, u.num_examples) for u in updates],
        )
        before = inputs.kept(_CONTROL)
        control = {}
        for n in names:  # the sum of c_k^+ - c_k = (theta^(t-1) - theta_k) / l_k - c
            c = before[n].double() if before else gradients[n].new_zeros(gradients[n].shape)
            change = (gradients[n] - len(updates) * c) / inputs.num_clients
            control[f"{_CONTROL}/{n}"] = (c + change).to(inputs.model[n].dtype)
        return ServerUpdate(mean, state=control)


METHOD = Method(
    title="SCAFFOLD",
    paper="Karimireddy et al., ICML 2020",
    params=SCAFFOLDParams,
    trainer=SCAFFOLDTrainer,
    only_sgd="its control variates are read off how far steps of SGD go",
    server=SCAFFOLD,
    tunable={"server-learning-rate": Range(0.1, 2.0)},
)
