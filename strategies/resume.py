"""The server's checkpoint of a round, and how a run goes on from one."""

import logging
from dataclasses import astuple

from fedadb_app.config import RunConfig
from fedadb_app.errors import ConfigError
from fedadb_app.models.classifier import StateDict
from fedadb_app.runs.checkpoint import Checkpoint, Facts, effective_values
from strategies.participants import Clients
from strategies.server_run import ServerRun

logger = logging.getLogger("flwr.fedadb")


def checkpoint_due(config: RunConfig, server_round: int) -> bool:
    """Whether a round is followed by a checkpoint: every ``checkpoint-every``, and the last."""
    every = config.checkpoint_every
    last = server_round == config.num_server_rounds
    return every > 0 and (server_round % every == 0 or last)


def checkpoint_of(
    run: ServerRun,
    clients: Clients,
    server_round: int,
    model: StateDict,
    state: StateDict,
    best: StateDict,
) -> Checkpoint:
    """Return all that a run needs to go on after a finished round.

    Parameters
    ----------
    run : ServerRun
        The run.
    clients : Clients
        For what is remembered of each.
    server_round : int
        t.
    model, state : StateDict
        theta^t, and what the method's server half remembers.
    best : StateDict
        The chosen model so far; empty without one.
    """
    ledger, folder = clients.ledger, run.folder
    facts = Facts(
        round=server_round,
        run_id=folder.run_id,
        ancestors=folder.ancestors,
        config=effective_values(run.config, run.params),
        partition=run.partition_hash,
        state_rounds=ledger.state_rounds,
        rounds_drawn=dict(ledger.rounds_drawn),
        nodes={node: astuple(held) for node, held in ledger.nodes.items()},
        tables=folder.tables(),
        seconds=folder.seconds,
        data=run.dataset.digest if run.dataset else "",
    )
    return Checkpoint(facts, model, state, best)


def resume_clients(
    checkpoint: Checkpoint, run: ServerRun, clients: Clients, model: StateDict
) -> None:
    """Check that a run may go on from a checkpoint, and remember its clients.

    Parameters
    ----------
    checkpoint : Checkpoint
        The earlier run's.
    run : ServerRun
        The run that goes on.
    clients : Clients
        Told what the checkpoint says of each.
    model : StateDict
        A model of this run, for its shapes.

    Raises
    ------
    ConfigError
        If that run had other data, or divided them otherwise.
    """
    facts, config = checkpoint.facts, run.config
    named = f'resume-from="{config.resume_from}"'
    shapes = [{n: t.shape for n, t in m.items()} for m in (checkpoint.model, model)]
    if facts.partition != run.partition_hash or shapes[0] != shapes[1]:
        raise ConfigError(
            f"{named}: the data, or how the clients share them, are not those of that run; a "
            f"resumed run needs the same data and as many clients"
        )
    if facts.data and run.dataset and facts.data != run.dataset.digest:
        raise ConfigError(
            f'{named}: the images of dataset="{config.dataset}" are not those of that run; put '
            f"them back, or start a new run"
        )
    logger.info("%s: going on after round %d of that run", named, facts.round)
    on_disk = config.client_state_dir and facts.config["client-state-dir"]
    if facts.state_rounds and not on_disk:
        logger.warning(
            "%s: %d clients kept a state between rounds in that run, which is lost because "
            "client-state-dir is not set in both runs; they start anew",
            named,
            len(facts.state_rounds),
        )
    clients.ledger.resume(facts, named, clients.roster.stated)
    if clients.ledger.nodes:
        run.folder.write_nodes(clients.ledger.nodes, run.schema)
