"""What the server remembers of single clients, from round to round and into a resumed run."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from fedadb_app.aggregation import ClientUpdate
from fedadb_app.data.clients import SampleCounts
from fedadb_app.runs.checkpoint import Facts

logger = logging.getLogger("flwr.fedadb")


class ClientLedger:
    """Who was drawn how often, who keeps a state, and what nodes with their own data have stated.

    Attributes
    ----------
    state_rounds : dict[int, int]
        Client -> the last round whose state it must have.
    rounds_drawn : Counter[int]
        Client -> in how many rounds it was drawn, for its privacy loss.
    nodes : dict[int, SampleCounts]
        Every node with its own data that has been connected -> its samples.
    """

    def __init__(self) -> None:
        self.state_rounds: dict[int, int] = {}
        self.rounds_drawn: Counter[int] = Counter()
        self.nodes: dict[int, SampleCounts] = {}

    def admit(self, stated: Mapping[int, SampleCounts]) -> bool:
        """Name newcomers and their weight; return whether anything is new.

        One that outweighs all others is worth a question.
        """
        total = sum(held.train for held in stated.values())
        for node in sorted(stated.keys() - self.nodes.keys()):
            share = stated[node].train / total
            level = logging.WARNING if len(stated) > 2 and share > 0.5 else logging.INFO
            text = "node %d takes part with %d samples, %.0f %% of all"
            logger.log(level, text, node, stated[node].train, 100 * share)
        new = not stated.items() <= self.nodes.items()
        self.nodes |= stated
        return new

    def lost_states(self, server_round: int, updates: Sequence[ClientUpdate]) -> int | None:
        """Name and count the clients that went on without what they kept in their last round.

        None if no client keeps a state.
        """
        rounds = {u.client: u.state_round for u in updates if u.state_round is not None}
        if not rounds:
            return None
        lost = {k: t for k, t in rounds.items() if t < self.state_rounds.get(k, 0)}
        for client, found in lost.items():
            logger.warning(
                "round %d: client %d has lost the state it kept in round %d and went on %s; set "
                "client-state-dir so that a state outlives its node's process",
                server_round,
                client,
                self.state_rounds[client],
                f"with that of round {found}" if found else "without one",
            )
        self.state_rounds |= dict.fromkeys(rounds, server_round)
        return len(lost)

    def resume(self, facts: Facts, named: str, stated: Mapping[int, SampleCounts]) -> None:
        """Go on with a checkpoint; name nodes that are gone, new or hold another number of samples.

        Parameters
        ----------
        facts : Facts
            The checkpoint's.
        named : str
            How the log names that run.
        stated : Mapping[int, SampleCounts]
            The connected nodes with their own data.
        """
        self.state_rounds = dict(facts.state_rounds)
        self.rounds_drawn = Counter(facts.rounds_drawn)
        self.nodes = {node: SampleCounts(*counts) for node, counts in facts.nodes.items()}
        both = stated.keys() & self.nodes.keys()
        for what, nodes in (
            ("not connected now, or under another id", self.nodes.keys() - both),
            ("not of that run, or under another id", stated.keys() - both),
            (
                "holding another number of samples than in that run",
                {node for node in both if stated[node] != self.nodes[node]},
            ),
        ):
            if nodes:
                listed = ", ".join(map(str, sorted(nodes)))
                logger.warning("%s: nodes %s: %s", named, what, listed)
