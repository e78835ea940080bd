"""Which clients are connected, by an identity that outlives a restart.

In simulation Flower draws new random node ids for every run, so a node is asked once for its
partition id, and that is the client's identity. A node with its own data has none; there the node
id, which Flower keeps with the node's registered key, is the identity, and the node states how many
samples it holds.

A node that refuses (its data do not pass its own checks), does not answer or does not fit in is
left out. It is asked again, but no round waits for that answer: once it is a good one, the node
takes part from the next round on.
"""

import logging
import math
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from flwr.serverapp import Grid

from fedadb_app import messages
from fedadb_app.config import RunConfig
from fedadb_app.data.clients import PartitionClaim, SampleCounts
from fedadb_app.errors import NodeError
from strategies.dispatch import is_simulation

if TYPE_CHECKING:
    from flwr.superlink.grid import InMemoryGrid

logger = logging.getLogger("flwr.fedadb")

_PAUSE = 0.2  # seconds between two looks at who is connected and who has answered
_PATIENCE = 20.0  # seconds a round waits for a newcomer, and until a refusing node is asked again
_PROBED = 8  # at least so many of a simulation's nodes are asked which partition they hold


class Roster:
    """The connected clients.

    Parameters
    ----------
    config : RunConfig
        For ``min-nodes``, ``node-timeout``, ``max-examples``, and what nodes hold.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._kind: type[messages.Claim] = SampleCounts if config.own_data else PartitionClaim
        self._connected: set[int] = set()
        self._claims: dict[int, messages.Claim] = {}  # by node id, once answered and accepted
        self._left_out: dict[int, str] = {}  # by node id: why; logged when it changes
        self._questions: dict[str, int] = {}  # message id -> node id, until answered
        self._asked: dict[int, float] = {}  # by node id: when last

    @property
    def nodes(self) -> dict[int, int]:
        """Identity -> node id of every connected client that takes part."""
        return {_identity(node, claim): node for node, claim in self._present.items()}

    @property
    def num_clients(self) -> int:
        """K: parts of the public data set, or connected nodes where each has its own data."""
        return max(self._parts, default=len(self.nodes))

    @property
    def stated(self) -> dict[int, SampleCounts]:
        """Identity -> number of samples, as nodes with their own data say."""
        present = self._present.items()
        return {node: claim for node, claim in present if isinstance(claim, SampleCounts)}

    @property
    def _present(self) -> dict[int, messages.Claim]:
        return {node: claim for node, claim in self._claims.items() if node in self._connected}

    @property
    def _parts(self) -> set[int]:
        claims = self._present.values()
        return {claim.num_partitions for claim in claims if isinstance(claim, PartitionClaim)}

    @property
    def _awaited(self) -> set[int]:
        """The connected nodes of which nothing has been heard yet."""
        return self._connected - self._claims.keys() - self._left_out.keys()

    def gather(self, grid: Grid) -> None:
        """Wait, before round 1, for ``min-nodes`` nodes and for every part of a public data set.

        Raises
        ------
        NodeError
            If ``node-timeout`` seconds pass without enough nodes, or identities clash.
        """
        if is_simulation(grid):
            self._know_simulation(grid)
        self._wait(grid, at_start=True)

    def refresh(self, grid: Grid) -> None:
        """See who is connected now; wait only while there are fewer than ``min-nodes``.

        Raises
        ------
        NodeError
            If ``node-timeout`` seconds pass without enough nodes.
        """
        self._wait(grid, at_start=False)

    def doubt(self, node: int, reason: str) -> None:
        """Let a node take part again only after it has answered anew."""
        self._claims.pop(node, None)
        self._left_out[node] = reason

    def _know_simulation(self, grid: "InMemoryGrid") -> None:
        """Learn who holds what in a simulation from the answers of a few nodes.

        To find the queries among K nodes, Flower looks through all of them for each node: K^2
        looks, minutes for 10 000 clients. But it registers a simulation's nodes in the order of
        their partitions. If some answers bear that out, nobody else is asked; if not, all are.
        """
        deadline = time.monotonic() + self._config.node_timeout
        while not (nodes := _by_registration(grid)) and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        # Whoever answers shows that the simulation is up, and then all its nodes are registered.
        self._probe(grid, nodes[:1], deadline)
        if not self._claims:
            return
        nodes = _by_registration(grid)
        self._probe(grid, nodes[1 :: max(1, len(nodes) // _PROBED)], deadline)
        expected = {node: PartitionClaim(i, len(nodes)) for i, node in enumerate(nodes)}
        if self._claims.items() <= expected.items():
            self._claims |= expected

    def _probe(self, grid: Grid, nodes: Iterable[int], deadline: float) -> None:
        self._connected |= set(nodes)
        self._ask(grid, nodes)
        self._hear(grid, at_start=True)
        while self._awaited and time.monotonic() < deadline:
            time.sleep(_PAUSE)
            self._hear(grid, at_start=True)

    def _wait(self, grid: Grid, at_start: bool) -> None:
        timeout = self._config.node_timeout
        patience = timeout if at_start else min(timeout, _PATIENCE)
        deadline = time.monotonic() + timeout
        while True:
            self._connected = set(grid.get_node_ids())
            now = time.monotonic()
            for node in self._awaited:
                if now - self._asked.get(node, now) >= patience:
                    self._leave_out(node, f"it has not answered for {patience:g} s")
            self._ask(grid, self._due(now))
            self._hear(grid, at_start)
            needed = max({self._config.min_nodes} | (self._parts if at_start else set()))
            enough = len(self.nodes) >= needed
            if enough and not self._awaited:
                return
            if now >= deadline and not enough:
                raise NodeError(self._too_few(needed))
            time.sleep(_PAUSE)

    def _due(self, now: float) -> list[int]:
        """Return who has not yet been asked, or was left out and may by now answer otherwise."""
        working = set(self._questions.values())  # on a large data set, perhaps: do not press it
        return [
            node
            for node in self._connected - self._claims.keys()
            if now - self._asked.get(node, -math.inf)
            >= (self._config.node_timeout if node in working else _PATIENCE)
        ]

    def _ask(self, grid: Grid, nodes: Iterable[int]) -> None:
        queries = [messages.identity_query(node) for node in sorted(nodes)]
        if queries:
            grid.push_messages(queries)
        for query in queries:
            self._questions[query.metadata.message_id] = query.metadata.dst_node_id
            self._asked[query.metadata.dst_node_id] = time.monotonic()

    def _hear(self, grid: Grid, at_start: bool) -> None:
        """Take in the answers that are there."""
        claims: dict[int, messages.Claim] = {}
        for reply in grid.pull_messages(list(self._questions)) if self._questions else ():
            node = self._questions.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            try:
                claims[node] = messages.read_identity(reply, self._kind)
            except messages.UnusableReplyError as error:
                self._leave_out(node, str(error))
        self._admit(claims, at_start)

    def _admit(self, claims: Mapping[int, messages.Claim], at_start: bool) -> None:
        """Let newcomers take part; who does not fit in is left out or, before round 1, refused."""
        holders, parts = self.nodes, max(self._parts, default=0)
        for node, claim in claims.items():
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
                self._leave_out(node, problem)
                continue
            self._left_out.pop(node, None)
            self._claims[node] = claim
            holders[_identity(node, claim)] = node

    def _leave_out(self, node: int, reason: str) -> None:
        if self._left_out.get(node) != reason:
            logger.warning("node %d is left out: %s", node, reason)
        self.doubt(node, reason)

    def _excess(self, claim: SampleCounts) -> str:
        most = self._config.max_examples
        if 1 <= claim.train <= most and 0 <= claim.held_out <= most:
            return ""
        return (
            f"it claims {claim.train} training and {claim.held_out} held-out samples, "
            f"but 1 to max-examples={most} are allowed"
        )

    def _too_few(self, needed: int) -> str:
        absent = sorted(self._connected - self._claims.keys())
        left_out = ""
        if absent:
            reason = self._left_out.get(absent[0], "it has not answered yet")
            left_out = f" ({len(absent)} more left out; node {absent[0]}: {reason})"
        key = "num-partitions" if needed > self._config.min_nodes else "min-nodes"
        return (
            f"{len(self.nodes)} SuperNodes are connected{left_out} after "
            f"node-timeout={self._config.node_timeout:g} s, but {needed} are needed: start more "
            f"SuperNodes, or change {key} or node-timeout"
        )


def _identity(node: int, claim: messages.Claim) -> int:
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


def _by_registration(grid: "InMemoryGrid") -> list[int]:
    nodes = sorted(grid.get_nodes(), key=lambda node: datetime.fromisoformat(node.registered_at))
    return [node.node_id for node in nodes]
