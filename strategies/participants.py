"""Who takes part in a round, and how much each client holds."""

import logging
import math
from collections.abc import Iterable, Mapping

from flwr.serverapp import Grid

from fedadb_app.data.clients import SampleCounts, partition_counts
from fedadb_app.privacy import epsilon_spent
from fedadb_app.randomness import numpy_generator
from strategies.ledger import ClientLedger
from strategies.roster import Roster
from strategies.server_run import ServerRun

logger = logging.getLogger("flwr.fedadb")


def draw_participants(
    seed: int,
    server_round: int,
    clients: Iterable[int],
    fraction: float,
    stream: str = "participants",
) -> list[int]:
    """Draw a round's participants, at least one, from the sorted identities.

    The draw depends on (seed, round) and on who is there, never on the method.
    """
    identities = sorted(clients)
    size = max(1, math.floor(len(identities) * fraction + 0.5))
    rng = numpy_generator(seed, stream, server_round)
    return sorted(identities[i] for i in rng.choice(len(identities), size, replace=False))


class Clients:
    """The clients of a run.

    Parameters
    ----------
    run : ServerRun
        For the configuration, who holds what, and the folder.
    roster : Roster
        Which clients are connected.

    Attributes
    ----------
    ledger : ClientLedger
        What is remembered of each.
    """

    def __init__(self, run: ServerRun, roster: Roster) -> None:
        self.roster = roster
        self.ledger = ClientLedger()
        self._run = run
        self._dealt = None if run.partition is None else partition_counts(run.config, run.partition)

    @property
    def counts(self) -> Mapping[int, SampleCounts]:
        """Samples of every client: as dealt out, or as each node with its own data has stated."""
        return self.roster.stated if self._dealt is None else self._dealt

    @property
    def admitted(self) -> Mapping[int, SampleCounts]:
        """Samples of every client ever admitted to the federation, those who left included."""
        return self.ledger.nodes if self._dealt is None else self._dealt

    def for_training(self, server_round: int, grid: Grid) -> dict[int, int]:
        """See who is connected, and draw who trains: node id -> client, in identity order.

        Raises
        ------
        NodeError
            If too few nodes are connected.
        """
        settings = self._run.config
        self.roster.refresh(grid)
        self._write_newcomers()
        clients = self.roster.nodes
        chosen = draw_participants(settings.seed, server_round, clients, settings.fraction_train)
        self.ledger.rounds_drawn.update(chosen)
        return {clients[client]: client for client in chosen}

    def _write_newcomers(self) -> None:
        if self.ledger.admit(self.roster.stated):
            self._run.folder.write_nodes(self.ledger.nodes, self._run.schema)

    def for_evaluation(self, server_round: int) -> dict[int, int]:
        """Draw who evaluates, of those that hold samples out: node id -> client."""
        settings, clients, counts = self._run.config, self.roster.nodes, self.counts
        able = [client for client in clients if counts[client].held_out]
        if not able:
            logger.warning("round %d: no connected client holds samples out", server_round)
            return {}
        chosen = draw_participants(
            settings.seed, server_round, able, settings.fraction_evaluate, "evaluators"
        )
        return {clients[client]: client for client in chosen}

    def epsilon(self, server_round: int) -> float:
        """Return the privacy loss so far of the client that was drawn most often."""
        settings = self._run.config
        # A node that returns under a new id is an old client: there every round counts for all.
        drawn = server_round if settings.own_data else max(self.ledger.rounds_drawn.values())
        return epsilon_spent(settings, drawn)
