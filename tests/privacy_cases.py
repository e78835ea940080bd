"""What the tests of differential privacy share: values, methods, and a message's model."""

from typing import Any

import pytest
import torch
from fake_grid import node_id
from helpers import Federation

import client_app
from fedadb_app import messages
from fedadb_app.wire_arrays import to_state_dict
from strategies.registry import METHODS

SINGLE = {"feddyn", "fedexp", "scaffold", "fedgmt", "fedgloss"}
"""Methods whose server needs each client's own update."""

CENTRAL = {"privacy": "central", "clipping-norm": 0.5, "noise-multiplier": 0.01}
LOCAL = {**CENTRAL, "privacy": "local"}
PLAIN = {"norm": "batch-local"}  # no running statistics, not even in FedGELA's head
every_method = pytest.mark.parametrize("name", list(METHODS))
mean_methods = pytest.mark.parametrize("name", [name for name in METHODS if name not in SINGLE])
both_modes = pytest.mark.parametrize("privacy", ["central", "local"])


def state(message: Any) -> dict[str, torch.Tensor]:
    return to_state_dict(message.content["arrays"])


def is_query(message: Any) -> bool:
    return message.metadata.message_type != "train"


def copied(model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.items()}


def local_reply(built: Federation, client: int, **changes: Any) -> Any:
    """What a client answers to the first round's message under other privacy values."""
    message = messages.train_message(built.grid.trained()[0].content, node_id(client))
    context = built.grid.context(node_id(client))
    context.run_config = {**context.run_config, **changes}
    return client_app.app(message, context)


def flat(model: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([t.double().flatten() for t in model.values()])
