"""FedBN: Li et al., "Federated Learning on Non-IID Features via Local Batch Normalization", 2021.

Published at ICLR. A client keeps the normalisation layers of its own model, b_k: scale, shift and
running statistics. All other tensors, a, are FedAvg's (algorithm 1):

    (a_k, b_k^t) from E local epochs that begin at (a^(t-1), b_k^(t-1)),    a^t = sum_k p_k a_k

A client in its first round begins with the common initial b^0. No b_k leaves its client: a reply
has those tensors as they were received, and the server's stay b^0 for good. So the global model
fits no client; (a^t, b^0) is what a newcomer begins with, and that is what a server evaluates and
``model.safetensors`` holds. Clients evaluate (a^t, b_k^t), in ``evaluate="clients"``.

Every kind of normalisation layer is kept, also what ``norm="group"`` makes of a batch
normalisation, and LayerNorm; in the paper all are batch normalisations. The authors' clients are
equally large and weigh alike; here they weigh by samples, as FedAvg's. A model without such layers
makes it FedAvg bit by bit.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Self

from torch import Tensor

from fedadb_app.aggregation import ClientUpdate
from fedadb_app.config import Settings
from fedadb_app.local_training import Trainer
from fedadb_app.models.classifier import ImageClassifier, StateDict
from fedadb_app.models.norm import normalisation_tensors
from strategies.fedavg import FedAvg
from strategies.method import Method
from strategies.server import RoundInputs, ServerUpdate, Workbench

logger = logging.getLogger("flwr.fedadb")


class FedBNParams(Settings):
    """FedBN has no values of its own."""


def take_up(model: ImageClassifier, state: Mapping[str, Tensor]) -> None:
    """Put what a client has kept, if it has, into the model that it received."""
    model.load_state_dict(dict(state), strict=False)


class FedBNTrainer(Trainer[FedBNParams]):
    """Client half: go on with one's own normalisation layers, and send none of them."""

    def begin(self) -> None:
        """Take up the layers of the client's last round, if there was one."""
        self._received = self._layers()
        take_up(self.model, self.task.state)

    def finish(self) -> dict[str, float]:
        """Keep the layers; in the model that is sent they are as they were received."""
        self.task.state.update(self._layers())
        take_up(self.model, self._received)
        return {}

    def _layers(self) -> StateDict:
        whole = self.model.state_copy()
        return {name: whole[name] for name in normalisation_tensors(self.model)}


class FedBN(FedAvg[FedBNParams]):
    """Server half: FedAvg's mean of all but the normalisation layers.

    Parameters
    ----------
    params : FedBNParams
        None.
    local : Collection[str]
        The tensors that stay with the clients, by name.
    """

    def __init__(self, params: FedBNParams, local: Collection[str] = ()) -> None:
        super().__init__(params)
        self._local = local

    @classmethod
    def of_run(cls, params: FedBNParams, bench: Workbench) -> Self:
        """Make the half of a run; say what of it is not what a reader may expect."""
        local = normalisation_tensors(bench.model)
        if not local:
            logger.warning(
                'strategy="fedbn" is FedAvg here: the model has no normalisation layer that a '
                "client could keep"
            )
        elif bench.config.server_evaluates:
            logger.warning(
                'evaluate="%s": with strategy="fedbn" the server evaluates what a newcomer begins '
                "with, the clients' mean around initial normalisation layers, and no client's "
                'model; evaluate="clients" has each client evaluate its own',
                bench.config.evaluate,
            )
        return cls(params, local)

    def update(self, inputs: RoundInputs, updates: Sequence[ClientUpdate]) -> ServerUpdate:
        """Return (a^t, b^0)."""
        mean = super().update(inputs, updates).model
        return ServerUpdate({**mean, **{name: inputs.model[name] for name in self._local}})


METHOD = Method(
    title="FedBN",
    paper="Li et al., ICLR 2021",
    params=FedBNParams,
    trainer=FedBNTrainer,
    server=FedBN,
    take_up=take_up,
)
