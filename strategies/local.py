"""Local training: each client alone, nothing aggregated. A reference, not a federated method.

What a hospital reaches without the others, with the same net and as much work: a client goes on
with its own model in the rounds in which it is drawn, as in FedAvg, from the common initial one.
After round t the accuracy, the loss and the class accuracies on the test set are the means over the
clients that have trained by then, each with the model that it has; `diagnostics.csv` has their
number, the sample standard deviation, the worst and the best. The global model stays as it was.

The server evaluates each model that comes back: it is sent for that alone, so the bytes of a run
say nothing. Refused where clients evaluate: they would be sent a model that is none of theirs.
"""

from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
import torch

from fedadb_app.aggregation import ClientUpdate
from fedadb_app.config import RunConfig
from fedadb_app.errors import ConfigError
from fedadb_app.evaluation import Evaluation
from fedadb_app.local_training import Trainer
from fedadb_app.models.classifier import StateDict
from strategies.fedavg import FedAvgParams
from strategies.method import Method
from strategies.server import RoundInputs, ServerHalf, ServerUpdate, Workbench

_CORRECT, _LOSS, _TOTAL = "correct/", "loss/", "total"


class LocalTrainer(Trainer[FedAvgParams]):
    """Client half: go on with one's own model."""

    def begin(self) -> None:
        """Take up the model of the client's last round, if there was one."""
        if self.task.state:
            self.model.load_state_dict(self.task.state)

    def finish(self) -> dict[str, float]:
        """Keep the model."""
        self.task.state.update(self.model.state_copy())
        return {}


class Local(ServerHalf[FedAvgParams]):
    """Server half: evaluates each client's model, and makes nothing of them.

    Parameters
    ----------
    params : FedAvgParams
        None.
    test : Callable or None
        A model -> what it finds on the test set; None = it is not evaluated.
    """

    needs_each_update = True

    def __init__(
        self, params: FedAvgParams, test: Callable[[StateDict], Evaluation] | None = None
    ) -> None:
        super().__init__(params)
        self._test = test

    @classmethod
    def of_run(cls, params: FedAvgParams, bench: Workbench) -> Self:
        """Make the half of a run."""
        return cls(params, bench.test)

    def update(self, inputs: RoundInputs, updates: Sequence[ClientUpdate]) -> ServerUpdate:
        """Return the model as it was, and what all clients so far have found on average."""
        if self._test is None:
            return ServerUpdate(inputs.model)
        state = dict(inputs.state)
        for update in updates:
            found = self._test(update.arrays)
            state[f"{_CORRECT}{update.client}"] = torch.from_numpy(found.correct)
            state[f"{_LOSS}{update.client}"] = torch.tensor(found.loss, dtype=torch.float64)
            state[_TOTAL] = torch.from_numpy(found.total)
        correct = np.array([t.numpy() for n, t in state.items() if n.startswith(_CORRECT)])
        losses = [float(t) for n, t in state.items() if n.startswith(_LOSS)]
        total = state[_TOTAL].numpy()
        accuracies = 100 * correct.sum(axis=1) / total.sum()
        diagnostics = {
            "local_clients": float(len(accuracies)),
            "accuracy_worst_client": float(accuracies.min()),
            "accuracy_best_client": float(accuracies.max()),
        }
        if len(accuracies) > 1:
            diagnostics["accuracy_sd_of_clients"] = float(accuracies.std(ddof=1))
        mean = Evaluation(correct.sum(axis=0), len(accuracies) * total, float(np.mean(losses)))
        return ServerUpdate(inputs.model, state, diagnostics, evaluation=mean)


def refuse(config: RunConfig, params: FedAvgParams) -> None:
    """Refuse what needs one model of all, or would noise what is never released."""
    del params
    if config.clients_evaluate:
        raise ConfigError(
            f'evaluate="{config.evaluate}" is not possible with strategy="local": there is no '
            f'model of all to send to the clients; use evaluate="server"'
        )
    if config.validates:
        raise ConfigError(
            f'validation="{config.validation}" is not possible with strategy="local": there is no '
            f'model of all to choose; use validation="merged"'
        )
    if config.privacy == "local":
        raise ConfigError(
            'privacy="local" is not possible with strategy="local", which releases no model'
        )


METHOD = Method(
    title="Local",
    paper="a reference: each client alone",
    params=FedAvgParams,
    trainer=LocalTrainer,
    server=Local,
    refuse=refuse,
    captions={
        "local_clients": "Clients that have trained",
        "accuracy_worst_client": "Accuracy of the worst client",
        "accuracy_best_client": "Accuracy of the best client",
        "accuracy_sd_of_clients": "Standard deviation of accuracy over clients",
    },
)
