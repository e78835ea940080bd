"""What methods with dual variables share: each client's sum of its movements, and all clients'.

v_k is what client k has moved by in all its rounds, s the sum of all v_k on the server: the v-form
of ADMM that FedDyn (`strategies.feddyn`) derives, and FedGMT and FedGloSS take up.
"""

from collections.abc import Mapping, MutableMapping, Sequence

from torch import Tensor, nn

from fedadb_app.aggregation import ClientUpdate, difference, weighted_mean
from fedadb_app.models.classifier import StateDict
from strategies.server import RoundInputs

_DRIFT = "drift"


def recalled(start: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> StateDict:
    """Return v_k, which starts at 0, for each parameter that a round starts from."""
    return {
        n: state[n].to(p.device) if n in state else p.new_zeros(p.shape) for n, p in start.items()
    }


def advance(
    model: nn.Module,
    start: Mapping[str, Tensor],
    memory: Mapping[str, Tensor],
    state: MutableMapping[str, Tensor],
) -> None:
    """Keep v_k + theta_k - theta as the client's state."""
    for name, p in model.named_parameters():
        moved = memory[name] + p.detach() - start[name]
        state[name] = moved.cpu()


def with_drift(
    inputs: RoundInputs, mean: StateDict, updates: Sequence[ClientUpdate], sent: StateDict
) -> tuple[StateDict, StateDict]:
    """Return a mean with s / K added to its parameters, and s as the state to keep.

    Parameters
    ----------
    inputs : RoundInputs
        For K and the s of the round before.
    mean : StateDict
        What s / K is added to.
    updates : Sequence[ClientUpdate]
        The participants' models theta_k.
    sent : StateDict
        What they started from.
    """
    names = inputs.parameter_names
    moved = weighted_mean(
        [difference(u.arrays, sent, names) for u in updates], [1.0] * len(updates)
    )
    drift = {n: inputs.state.get(f"{_DRIFT}/{n}", 0) + moved[n] for n in names}  # s
    model = mean | {n: mean[n] + drift[n] / inputs.num_clients for n in names}
    return model, {f"{_DRIFT}/{n}": s for n, s in drift.items()}
