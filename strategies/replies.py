"""What becomes of the replies to a round's messages: read, refused or ignored, and always named."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from flwr.app import Message

from fedadb_app import messages
from strategies.roster import Roster

logger = logging.getLogger("flwr.fedadb")

Answer = TypeVar("Answer")


@dataclass
class Answers(Generic[Answer]):
    """What the asked clients answered.

    Attributes
    ----------
    usable : dict[int, Answer]
        By client.
    failures : dict[int, str]
        Why there is no usable answer of the others, by client.
    num_bytes : int
        Size of the usable ones.
    """

    usable: dict[int, Answer] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    num_bytes: int = 0


def read_replies(
    server_round: int,
    sent: Sequence[Message],
    clients: Mapping[int, int],
    replies: Iterable[Message],
    read: Callable[[Message, int], Answer],
    roster: Roster,
    timeout: float,
) -> Answers[Answer]:
    """Read each reply once, and log why others are unusable.

    Parameters
    ----------
    server_round : int
        t, for the log.
    sent : Sequence[Message]
        What was asked.
    clients : Mapping[int, int]
        The asked nodes' ids, and which clients they are.
    replies : Iterable[Message]
        Whatever has come.
    read : Callable
        Reads a client's reply, or raises an `UnusableReplyError`.
    roster : Roster
        Is told which nodes say of themselves that they cannot take part.
    timeout : float
        How long was waited, seconds.
    """
    silent = f"no reply within round-timeout={timeout:g} s"
    found = Answers[Answer](failures=dict.fromkeys(clients.values(), silent))
    answered: set[int] = set()
    asked = messages.Asked(sent)
    for reply in replies:
        node = asked.node(reply)
        if node is None or node in answered:
            logger.warning(
                "round %d: a reply of node %d is ignored: %s",
                server_round,
                reply.metadata.src_node_id,
                "it was not asked" if node is None else "it has already answered",
            )
            continue
        answered.add(node)
        client = clients[node]
        try:
            found.usable[client] = read(reply, client)
        except messages.UnusableReplyError as error:
            reason = str(error)
            if isinstance(error, messages.RefusalError):
                roster.doubt(node, reason)
                reason += "; it is left out until it has answered anew"
            found.failures[client] = reason
            continue
        del found.failures[client]
        found.num_bytes += messages.content_bytes(reply.content)
    for client, reason in sorted(found.failures.items()):
        logger.warning("round %d: client %d failed: %s", server_round, client, reason)
    return found
