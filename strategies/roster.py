"""Which clients are connected, by an identity that outlives a restart.

In simulation Flower draws new random node ids for every run, so a node is asked once for its
partition id, and that is the client's identity. A node with its own data has none; there the node
id, fixed by the node's key, is the identity.
"""

import logging
import time
from collections.abc import Iterable
from datetime import datetime

from flwr.serverapp import Grid
from flwr.superlink.grid import InMemoryGrid

from fedadb_app import messages
from fedadb_app.config import RunConfig
from fedadb_app.errors import NodeError

logger = logging.getLogger("flwr.fedadb")

_PAUSE = 0.2  # seconds between two looks at who is connected
_PATIENCE = 20.0  # seconds a round waits for a newcomer's answer when enough others are there
_PROBED = 8  # at least so many of a simulation's nodes are asked which partition they hold


class Roster:
    """The connected clients.

    Parameters
    ----------
    config : RunConfig
        For ``min-nodes`` and ``node-timeout``.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._claims: dict[int, messages.PartitionClaim | None] = {}  # by node id, once answered
        self._connected: set[int] = set()
        self._silent: set[int] = set()  # node ids that were asked and did not answer
        self._misfits: set[int] = set()  # node ids that came during the run and do not fit in
        self._complaints: dict[int, str] = {}  # by node id, so that each is logged once

    @property
    def nodes(self) -> dict[int, int]:
        """Identity -> node id of every connected client that has answered."""
        return {
            node if claim is None else claim.partition_id: node
            for node, claim in self._claims.items()
            if node in self._connected and node not in self._misfits
        }

    @property
    def num_clients(self) -> int:
        """K: parts of the public data set, or connected nodes where each has its own data."""
        return max(self._parts) if self._parts else len(self.nodes)

    def gather(self, grid: Grid) -> None:
        """Wait, before round 1, for ``min-nodes`` nodes and for every part of a public data set.

        Raises
        ------
        NodeError
            If ``node-timeout`` seconds pass without enough nodes, or identities clash.
        """
        if isinstance(grid, InMemoryGrid):
            self._know_simulation(grid)
        self._wait(grid, every_part=True)

    def refresh(self, grid: Grid) -> None:
        """See who is connected now; wait only while there are fewer than ``min-nodes``.

        Raises
        ------
        NodeError
            As `gather`.
        """
        self._wait(grid, every_part=False)

    def _know_simulation(self, grid: InMemoryGrid) -> None:
        """Learn who holds what in a simulation from the answers of a few nodes.

        To find the queries among K nodes, Flower looks through all of them for each node: K^2
        looks, minutes for 10 000 clients. But it registers a simulation's nodes in the order of
        their partitions. If some answers bear that out, nobody else is asked; if not, all are.
        """
        deadline = time.monotonic() + self._config.node_timeout
        while not (nodes := _by_registration(grid)) and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        # Whoever answers shows that the simulation is up, and then all its nodes are registered.
        self._ask(grid, nodes[:1], max(1.0, deadline - time.monotonic()))
        if not self._claims:
            return
        nodes = _by_registration(grid)
        others = nodes[1 :: max(1, len(nodes) // _PROBED)]
        self._ask(grid, others, max(1.0, deadline - time.monotonic()))
        expected = {node: messages.PartitionClaim(i, len(nodes)) for i, node in enumerate(nodes)}
        if self._claims.items() <= expected.items():
            self._claims |= expected

    def _wait(self, grid: Grid, every_part: bool) -> None:
        deadline = time.monotonic() + self._config.node_timeout
        while True:
            self._connected = set(grid.get_node_ids())
            newcomers = self._connected - self._claims.keys()
            patience = max(1.0, deadline - time.monotonic())
            if len(self.nodes) >= self._needed(every_part):
                # The round need not wait for them, nor ask again who would not answer.
                newcomers -= self._silent
                patience = min(patience, _PATIENCE)
            if newcomers:
                self._ask(grid, newcomers, patience)
                self._check_identities(at_start=every_part)
            needed = self._needed(every_part)
            if len(self.nodes) >= needed:
                return
            if time.monotonic() >= deadline:
                silent = len(self._connected) - len(self.nodes)
                raise NodeError(
                    f"{len(self.nodes)} SuperNodes are connected"
                    f"{f' ({silent} more do not answer)' if silent else ''} after "
                    f"node-timeout={self._config.node_timeout:g} s, but {needed} are needed: start "
                    f"more SuperNodes, or change "
                    f"{'num-partitions' if needed > self._config.min_nodes else 'min-nodes'} "
                    f"or node-timeout"
                )
            time.sleep(_PAUSE)

    def _needed(self, every_part: bool) -> int:
        parts = self._parts if every_part else set()
        return max(self._config.min_nodes, *parts) if parts else self._config.min_nodes

    @property
    def _parts(self) -> set[int]:
        return {
            claim.num_partitions
            for node, claim in self._claims.items()
            if claim and node in self._connected and node not in self._misfits
        }

    @property
    def without_data(self) -> list[int]:
        """Node ids of connected nodes that hold no part of the data set."""
        return sorted(n for n, c in self._claims.items() if c is None and n in self._connected)

    def _ask(self, grid: Grid, nodes: Iterable[int], timeout: float) -> None:
        queries = [messages.identity_query(node) for node in sorted(nodes)]
        self._silent |= set(nodes)
        replies = grid.send_and_receive(queries, timeout=timeout)
        asked = messages.Asked(queries)
        for reply in replies:
            node = asked.node(reply)
            if node is None:
                continue
            self._silent.discard(node)
            try:
                self._claims[node] = messages.read_identity(reply)
            except messages.UnusableReplyError as error:
                if self._complaints.get(node) != str(error):
                    self._complaints[node] = str(error)
                    logger.warning("node %d does not say who it is: %s", node, error)

    def _check_identities(self, at_start: bool) -> None:
        """Refuse, before round 1, nodes that do not fit together; later, leave out newcomers."""
        connected = {
            node: claim
            for node, claim in self._claims.items()
            if claim and node in self._connected and node not in self._misfits
        }
        holders: dict[int, int] = {}
        parts: int | None = None
        for node, claim in connected.items():
            parts = parts or claim.num_partitions
            problem = ""
            if claim.num_partitions != parts:
                both = sorted({parts, claim.num_partitions})
                problem = (
                    f"SuperNodes disagree on num-partitions: {both}; "
                    f"give all the same --node-config"
                )
            elif not 0 <= claim.partition_id < parts:
                problem = (
                    f"a SuperNode holds partition-id={claim.partition_id}, but with "
                    f"num-partitions={parts} it must be below that, from 0"
                )
            elif claim.partition_id in holders and at_start:
                problem = (
                    f"two SuperNodes hold partition-id={claim.partition_id}; "
                    f"each needs its own --node-config"
                )
            if problem and at_start:
                raise NodeError(problem)
            if problem:
                self._misfits.add(node)
                logger.warning("node %d is left out: %s", node, problem)
            elif claim.partition_id in holders:  # restarted under a new id; `nodes` takes it
                logger.warning(
                    "two SuperNodes hold partition-id=%d; the newer one is used", claim.partition_id
                )
            holders[claim.partition_id] = node


def _by_registration(grid: InMemoryGrid) -> list[int]:
    nodes = sorted(grid.get_nodes(), key=lambda node: datetime.fromisoformat(node.registered_at))
    return [node.node_id for node in nodes]
