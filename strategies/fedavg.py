"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks", AISTATS 2017.

Each participant k trains the global model theta^(t-1) on its own samples, E epochs of mini-batch
SGD on the cross-entropy; the server averages by samples, over the round's participants K_t:

    theta^t = sum_{k in K_t} p_k theta_k,    p_k = n_k / sum_{j in K_t} n_j       (equation 1)

Buffers (BatchNorm's running statistics) are averaged with the same weights.
"""

from collections.abc import Sequence
from typing import TypeVar

from fedadb_app.aggregation import ClientUpdate, sample_weights, weighted_mean
from fedadb_app.config import Settings
from fedadb_app.local_training import Trainer
from strategies.method import Method
from strategies.server import RoundInputs, ServerHalf, ServerUpdate

P = TypeVar("P", bound=Settings)


class FedAvgParams(Settings):
    """FedAvg has no values of its own."""


class FedAvg(ServerHalf[P]):
    """Server half: the sample-weighted mean."""

    def update(self, inputs: RoundInputs, updates: Sequence[ClientUpdate]) -> ServerUpdate:
        """Return sum_k p_k theta_k."""
        return ServerUpdate(weighted_mean([u.arrays for u in updates], sample_weights(updates)))


METHOD = Method(
    title="FedAvg",
    paper="McMahan et al., AISTATS 2017",
    params=FedAvgParams,
    trainer=Trainer,
    server=FedAvg,
)
