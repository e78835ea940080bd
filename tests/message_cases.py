"""Messages that the tests of both directions share."""

import math

import torch
from flwr.app import Message

from fedadb_app.local_training import Attachment
from fedadb_app.messages import Instruction, train_content, train_message, train_reply
from fedadb_app.wire_arrays import to_arrays

MODEL = {
    "features.0.weight": torch.tensor([[1.5, -2.0, 3.25]]),
    "features.0.bias": torch.tensor([1e-30, 1e30]),
    "norm.num_batches_tracked": torch.tensor(12),
    "half": torch.tensor([0.5], dtype=torch.float16),
    "double": torch.tensor([math.pi], dtype=torch.float64),
    "nothing": torch.zeros(0, 3),
}


def instruction(**attachments: Attachment) -> Instruction:
    return Instruction(3, 20, 0.0098, attachments)


def asked(node: int = 11, **attachments: Attachment) -> Message:
    content = train_content(to_arrays(MODEL), instruction(**attachments))
    return train_message(content, node)


def good_reply() -> Message:
    return train_reply(asked(), MODEL, 100, {"train-loss": 0.25, "steps": 7})
