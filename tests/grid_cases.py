"""A round's replies over Flower's real SuperLink and grid, one of them hostile."""

from collections.abc import Mapping, Sequence

import torch
from flwr.app import Message
from helpers import identical
from superlink import Parcel, SuperLink

from fedadb_app.guarded_grid import GuardedGrid
from fedadb_app.messages import Instruction, read_train_reply, train_content, train_message
from fedadb_app.messages import train_reply as pack
from fedadb_app.models.classifier import StateDict
from fedadb_app.refusals import UnusableReplyError, last_resort
from fedadb_app.wire_arrays import to_arrays

MODEL: StateDict = {"weight": torch.arange(1200.0).view(30, 40), "bias": torch.ones(40)}
MODEL_BYTES = 4 * 1240
HOSTILE, HONEST = 0, 1  # positions among the nodes


class Asked:
    """A round's two messages, and the honest answers to them."""

    def __init__(self, link: SuperLink) -> None:
        content = train_content(to_arrays(MODEL), Instruction(1, 1, 0.1, {}))
        sent = [train_message(content, node) for node in link.nodes]
        self.ids = list(link.grid.push_messages(sent))
        self.replies = [
            self.by(node, pack(m, MODEL, 5, {"train-loss": 1.0}))
            for node, m in zip(link.nodes, sent, strict=True)
        ]
        self.sent = sent

    @staticmethod
    def by(node: int, reply: Message) -> Message:
        reply.metadata.__dict__["_src_node_id"] = node
        return reply


def read(message: Message) -> str:
    """Why a reply cannot be used; nothing if it can."""
    try:
        with last_resort():
            update = read_train_reply(message, 0, MODEL, 5)
    except UnusableReplyError as error:
        return str(error)
    assert update.arrays.keys() == MODEL.keys()
    return ""


def by_sender(messages: Sequence[Message]) -> dict[int, Message]:
    return {message.metadata.src_node_id: message for message in messages}


def pulled(link: SuperLink, grid: GuardedGrid, asked: Asked, parcel: Parcel) -> str:
    """What becomes of a hostile reply beside an honest one, which must arrive as it was sent."""
    return pulled_all(link, grid, asked, {HOSTILE: parcel})[HOSTILE]


def pulled_all(
    link: SuperLink, grid: GuardedGrid, asked: Asked, parcels: Mapping[int, Parcel]
) -> dict[int, str]:
    """What becomes of hostile replies, by the position of their node, beside an honest one."""
    for parcel in parcels.values():
        link.send(parcel)
    link.send(Parcel.of(asked.replies[HONEST]))
    found = by_sender(list(grid.pull_messages(asked.ids)))
    honest = read_train_reply(found[link.nodes[HONEST]], 1, MODEL, 5)
    assert identical(honest.arrays, MODEL)
    assert found.keys() <= set(link.nodes)
    nodes = {k: link.nodes[k] for k in parcels}
    return {k: read(found[node]) if node in found else "no reply" for k, node in nodes.items()}
