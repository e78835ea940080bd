"""What becomes of the replies to a round's messages: read, refused or ignored, and always named."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from flwr.app import Message

from fedadb_app.config import RunConfig
from fedadb_app.refusals import RefusalError, UnusableReplyError, last_resort
from fedadb_app.wire_arrays import content_bytes
from strategies.roster import Roster
from strategies.round import Round

logger = logging.getLogger("flwr.fedadb")

Answer = TypeVar("Answer")


class Asked:
    """Which nodes some messages went to, once these have been pushed; one look-up a reply.

    For a node that is gone, or a message that is lost, the SuperLink replies in its own name; what
    tells then is the id of the message.
    """

    def __init__(self, sent: Iterable[Message]) -> None:
        asked = [message.metadata for message in sent]
        self._by_id = {a.message_id: a.dst_node_id for a in asked if a.message_id}
        self._nodes = {a.dst_node_id for a in asked}

    def node(self, reply: Message) -> int | None:
        """Return the node that a reply is about, or None where it answers none of the messages."""
        source = reply.metadata.src_node_id
        return self._by_id.get(
            reply.metadata.reply_to_message_id, source if source in self._nodes else None
        )


@dataclass
class Answers(Generic[Answer]):
    """What the asked clients answered.

    Attributes
    ----------
    usable : dict[int, Answer]
        By client.
    failures : dict[int, str]
        Why there is no usable answer of the others, by client.
    """

    usable: dict[int, Answer] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)


def read_replies(
    this: Round,
    clients: Mapping[int, int],
    replies: Iterable[Message],
    read: Callable[[Message, int], Answer],
    roster: Roster,
    config: RunConfig,
) -> Answers[Answer]:
    """Read each reply once, and log why others are unusable.

    Parameters
    ----------
    this : Round
        What was asked; takes down how much has come.
    clients : Mapping[int, int]
        The asked nodes' ids, and which clients they are.
    replies : Iterable[Message]
        Whatever has come.
    read : Callable
        Reads a client's reply, or raises an `UnusableReplyError`.
    roster : Roster
        Is told which nodes say of themselves that they cannot take part.
    config : RunConfig
        For how long was waited.
    """
    silent = f"no reply within round-timeout={config.round_timeout:g} s"
    found = Answers[Answer](failures=dict.fromkeys(clients.values(), silent))
    answered: set[int] = set()
    asked = Asked(this.sent)
    for reply in replies:
        node = asked.node(reply)
        if node is None or node in answered:
            logger.warning(
                "round %d: a reply of node %d is ignored: %s",
                this.number,
                reply.metadata.src_node_id,
                "it was not asked" if node is None else "it has already answered",
            )
            continue
        answered.add(node)
        client = clients[node]
        try:
            with last_resort():
                found.usable[client] = read(reply, client)
        except UnusableReplyError as error:
            reason = str(error)
            if isinstance(error, RefusalError):
                roster.doubt(node, reason)
                reason += "; it is left out until it has answered anew"
            found.failures[client] = reason
            continue
        del found.failures[client]
        this.record.bytes_up += content_bytes(reply.content)
    for client, reason in sorted(found.failures.items()):
        logger.warning("round %d: client %d failed: %s", this.number, client, reason)
    return found
