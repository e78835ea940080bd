"""Which clients are connected, by an identity that outlives a restart.

In simulation Flower draws new random node ids for every run, so a node is asked once for its
partition id, and that is the client's identity. A node with its own data has none; there the node
id, which Flower keeps with the node's registered key, is the identity, and the node states how many
samples it holds.
"""

import logging
import time
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from flwr.serverapp import Grid

from fedadb_app.config import RunConfig
from fedadb_app.data.clients import PartitionClaim, SampleCounts
from fedadb_app.errors import NodeError
from fedadb_app.flower_internals import is_simulation
from strategies.claims import PATIENCE, Claims, identity, stated_parts

if TYPE_CHECKING:
    from fedadb_app.flower_internals import InMemoryGrid

logger = logging.getLogger("flwr.fedadb")

_PAUSE = 0.2  # seconds between two looks at who is connected and who has answered
_FIRST_WORD, _NEXT_WORD = 5.0, 60.0  # seconds of waiting until the log says so, and says so again
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
        self._connected: set[int] = set()
        self._claims = Claims(config)

    @property
    def nodes(self) -> dict[int, int]:
        """Identity -> node id of every connected client that takes part."""
        present = self._claims.of(self._connected)
        return {identity(node, claim): node for node, claim in present.items()}

    @property
    def num_clients(self) -> int:
        """K: parts of the public data set, or connected nodes where each has its own data."""
        return max(self._parts, default=len(self.nodes))

    @property
    def stated(self) -> dict[int, SampleCounts]:
        """Identity -> number of samples, as nodes with their own data say."""
        present = self._claims.of(self._connected).items()
        return {node: claim for node, claim in present if isinstance(claim, SampleCounts)}

    @property
    def _parts(self) -> set[int]:
        return stated_parts(self._claims.of(self._connected).values())

    @property
    def _awaited(self) -> set[int]:
        return self._claims.awaited(self._connected)

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
        self._claims.doubt(node, reason)

    def _know_simulation(self, grid: "InMemoryGrid") -> None:
        """Learn who holds what in a simulation from the answers of a few nodes.

        To find the queries among K nodes, Flower looks through all of them for each node: K^2
        looks, minutes for 10 000 clients. But it registers a simulation's nodes in the order of
        their partitions. If some answers bear that out, nobody else is asked; if not, all are.
        """
        wait = _Wait(self._config.node_timeout)
        while not (nodes := _by_registration(grid)) and not wait.is_over:
            wait.pause("the simulation has no nodes yet")
        # Whoever answers shows that the simulation is up, and then all its nodes are registered.
        self._probe(grid, nodes[:1], wait)
        if not self._claims.accepted:
            return
        nodes = _by_registration(grid)
        self._probe(grid, nodes[1 :: max(1, len(nodes) // _PROBED)], wait)
        expected = {node: PartitionClaim(i, len(nodes)) for i, node in enumerate(nodes)}
        if self._claims.accepted.items() <= expected.items():
            self._claims.accepted |= expected

    def _probe(self, grid: Grid, nodes: Iterable[int], wait: "_Wait") -> None:
        self._connected |= set(nodes)
        self._claims.ask(grid, nodes, time.monotonic())
        self._claims.hear(grid, self._connected, at_start=True)
        while self._awaited and not wait.is_over:
            wait.pause("the simulation's first nodes have not answered")
            self._claims.hear(grid, self._connected, at_start=True)

    def _wait(self, grid: Grid, at_start: bool) -> None:
        timeout = self._config.node_timeout
        patience = timeout if at_start else min(timeout, PATIENCE)
        wait = _Wait(timeout)
        while True:
            self._connected = set(grid.get_node_ids())
            now = time.monotonic()
            self._claims.give_up(self._connected, now, patience)
            self._claims.ask(grid, self._claims.due(self._connected, now), now)
            self._claims.hear(grid, self._connected, at_start)
            needed = max({self._config.min_nodes} | (self._parts if at_start else set()))
            enough = len(self.nodes) >= needed
            if enough and not self._awaited:
                return
            if wait.is_over and not enough:
                raise NodeError(self._too_few(needed))
            wait.pause(f"{self._there()}, {needed} are needed")

    def _there(self) -> str:
        absent = sorted(self._connected - self._claims.accepted.keys())
        left_out = ""
        if absent:
            reason = self._claims.left_out.get(absent[0], "it has not answered yet")
            left_out = f" ({len(absent)} more left out; node {absent[0]}: {reason})"
        return f"{len(self.nodes)} SuperNodes are connected{left_out}"

    def _too_few(self, needed: int) -> str:
        key = "num-partitions" if needed > self._config.min_nodes else "min-nodes"
        return (
            f"{self._there()} after "
            f"node-timeout={self._config.node_timeout:g} s, but {needed} are needed: start more "
            f"SuperNodes, or change {key} or node-timeout"
        )


class _Wait:
    """Waiting for nodes, which the log tells of: a run that stands still must say for whom.

    Parameters
    ----------
    seconds : float
        How long, at most.
    """

    def __init__(self, seconds: float) -> None:
        now = time.monotonic()
        self._end, self._next_word = now + seconds, now + _FIRST_WORD

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end

    def pause(self, state: str) -> None:
        """Wait until the next look; say from time to time what has been seen."""
        now = time.monotonic()
        if now >= self._next_word:
            logger.info("%s; waiting, for %.0f s more at most", state, max(0.0, self._end - now))
            self._next_word = now + _NEXT_WORD
        time.sleep(_PAUSE)


def _by_registration(grid: "InMemoryGrid") -> list[int]:
    nodes = sorted(grid.get_nodes(), key=lambda node: datetime.fromisoformat(node.registered_at))
    return [node.node_id for node in nodes]
