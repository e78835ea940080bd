"""What the connected nodes have said they hold: asked, heard, and let in or left out.

A node that refuses (its data do not pass its own checks), does not answer or does not fit in is
left out. It is asked again, but no round waits for that answer: once it is a good one, the node
takes part from the next round on.
"""

import logging
import math
from collections.abc import Collection, Iterable, Mapping

from flwr.serverapp import Grid

from fedadb_app import messages
from fedadb_app.config import RunConfig
from fedadb_app.data.clients import PartitionClaim, SampleCounts
from fedadb_app.errors import NodeError
from fedadb_app.refusals import UnusableReplyError, last_resort

logger = logging.getLogger("flwr.fedadb")

PATIENCE = 20.0
"""Seconds a round waits for a newcomer, and until a node that was left out is asked again."""


class Claims:
    """Every node's answer to the question which data it holds.

    Parameters
    ----------
    config : RunConfig
        For ``node-timeout``, ``max-examples``, and what nodes hold.

    Attributes
    ----------
    accepted : dict[int, Claim]
        Node id -> its claim, once answered and let in.
    left_out : dict[int, str]
        Node id -> why; logged when it changes.
    """

    def __init__(self, config: RunConfig) -> None:
        self.accepted: dict[int, messages.Claim] = {}
        self.left_out: dict[int, str] = {}
        self._config = config
        self._kind: type[messages.Claim] = SampleCounts if config.own_data else PartitionClaim
        self._questions: dict[str, int] = {}  # message id -> node id, until answered
        self._asked: dict[int, float] = {}  # by node id: when last

    def of(self, connected: Collection[int]) -> dict[int, messages.Claim]:
        """Return the accepted claims of the connected nodes."""
        return {node: claim for node, claim in self.accepted.items() if node in connected}

    def awaited(self, connected: set[int]) -> set[int]:
        """Return the connected nodes of which nothing has been heard yet."""
        return connected - self.accepted.keys() - self.left_out.keys()

    def ask(self, grid: Grid, nodes: Iterable[int], now: float) -> None:
        """Ask nodes which data they hold."""
        queries = [messages.identity_query(node) for node in sorted(nodes)]
        if queries:
            grid.push_messages(queries)
        for query in queries:
            self._questions[query.metadata.message_id] = query.metadata.dst_node_id
            self._asked[query.metadata.dst_node_id] = now

    def due(self, connected: set[int], now: float) -> list[int]:
        """Return who has not yet been asked, or was left out and may by now answer otherwise."""
        working = set(self._questions.values())  # on a large data set, perhaps: do not press it
        return [
            node
            for node in connected - self.accepted.keys()
            if now - self._asked.get(node, -math.inf)
            >= (self._config.node_timeout if node in working else PATIENCE)
        ]

    def give_up(self, connected: set[int], now: float, patience: float) -> None:
        """Leave out whoever was asked so long ago and has not answered."""
        for node in self.awaited(connected):
            if now - self._asked.get(node, now) >= patience:
                self.leave_out(node, f"it has not answered for {patience:g} s")

    def hear(self, grid: Grid, connected: Collection[int], at_start: bool) -> None:
        """Take in the answers that are there.

        Raises
        ------
        NodeError
            If identities clash before round 1.
        """
        heard: dict[int, messages.Claim] = {}
        for reply in grid.pull_messages(list(self._questions)) if self._questions else ():
            node = self._questions.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            try:
                with last_resort():
                    heard[node] = messages.read_identity(reply, self._kind)
            except UnusableReplyError as error:
                self.leave_out(node, str(error))
        self._admit(heard, connected, at_start)

    def _admit(
        self, heard: Mapping[int, messages.Claim], connected: Collection[int], at_start: bool
    ) -> None:
        """Let newcomers take part; who does not fit in is left out or, before round 1, refused."""
        present = self.of(connected)
        holders = {identity(node, claim): node for node, claim in present.items()}
        parts = max(stated_parts(present.values()), default=0)
        for node, claim in heard.items():
            if isinstance(claim, SampleCounts):
                problem = self._excess(claim)
            else:
                parts = parts or claim.num_partitions
                twin = holders.get(claim.partition_id, node)
                problem = _misfit(claim, parts, taken=twin != node and at_start)
                if problem and at_start:
                    raise NodeError(problem)
                if twin != node and not problem:  # restarted under a new id
                    logger.warning(
                        "two SuperNodes hold partition-id=%d; the newer one is used",
                        claim.partition_id,
                    )
            if problem:
                self.leave_out(node, problem)
                continue
            self.left_out.pop(node, None)
            self.accepted[node] = claim
            holders[identity(node, claim)] = node

    def leave_out(self, node: int, reason: str) -> None:
        """Let a node take part only after it has answered anew; name a reason that is new."""
        if self.left_out.get(node) != reason:
            logger.warning("node %d is left out: %s", node, reason)
        self.doubt(node, reason)

    def doubt(self, node: int, reason: str) -> None:
        """Let a node take part again only after it has answered anew."""
        self.accepted.pop(node, None)
        self.left_out[node] = reason

    def _excess(self, claim: SampleCounts) -> str:
        most = self._config.max_examples
        kept = (claim.held_out, claim.validation)
        if 1 <= claim.train <= most and all(0 <= number <= most for number in kept):
            return ""
        more = f" and {claim.validation} for validation" if claim.validation else ""
        return (
            f"it claims {claim.train} training and {claim.held_out} held-out samples{more}, "
            f"but 1 to max-examples={most} are allowed"
        )


def stated_parts(claims: Iterable[messages.Claim]) -> set[int]:
    """Return into how many parts a public data set is divided, as these claims say."""
    return {claim.num_partitions for claim in claims if isinstance(claim, PartitionClaim)}


def identity(node: int, claim: messages.Claim) -> int:
    """Return which client a node is: the part that it holds, or the node itself."""
    return claim.partition_id if isinstance(claim, PartitionClaim) else node


def _misfit(claim: PartitionClaim, parts: int, taken: bool) -> str:
    """Say why a node's claim does not fit the others', which is `taken` if one of them has it."""
    if claim.num_partitions != parts:
        both = sorted({parts, claim.num_partitions})
        return f"SuperNodes disagree on num-partitions: {both}; give all the same --node-config"
    if not 0 <= claim.partition_id < parts:
        return (
            f"a SuperNode holds partition-id={claim.partition_id}, but with "
            f"num-partitions={parts} it must be below that, from 0"
        )
    if taken:
        return (
            f"two SuperNodes hold partition-id={claim.partition_id}; "
            f"each needs its own --node-config"
        )
    return ""
