"""The middle of a round: from the participants' replies to the updates that the method is given."""

import logging
from collections.abc import Iterable, Sequence

from flwr.app import Message

from fedadb_app import messages
from fedadb_app.aggregation import ClientUpdate, client_drift, sample_weights
from fedadb_app.errors import TrainingError
from fedadb_app.refusals import UnusableReplyError
from fedadb_app.robust import robust_mean
from strategies.central_privacy import released
from strategies.failures import absurdity, too_few
from strategies.participants import Clients
from strategies.replies import read_replies
from strategies.round import Round
from strategies.server_run import ServerRun

logger = logging.getLogger("flwr.fedadb")

LEAST_OUTVOTED = 3
"""Of fewer updates each robust rule gives the mean of all, or the only one."""


def usable_updates(
    run: ServerRun, clients: Clients, this: Round, replies: Iterable[Message]
) -> list[ClientUpdate]:
    """Return the usable updates in identity order; log why the others are not.

    Raises
    ------
    TrainingError
        If they are too few.
    """
    config, counts, sent = run.config, clients.counts, this.broadcast.model

    def read(reply: Message, client: int) -> ClientUpdate:
        update = messages.read_train_reply(reply, client, sent, counts[client].train)
        if problem := absurdity(config, sent, this.inputs.parameter_names, update):
            raise UnusableReplyError(problem)
        return update

    found = read_replies(this, this.participants, replies, read, clients.roster, config)
    this.record.clients, this.record.failures = len(found.usable), len(found.failures)
    if problem := too_few(config, this.number, len(this.participants), found):
        raise TrainingError(problem)
    return [found.usable[client] for client in sorted(found.usable)]


def trained(
    run: ServerRun, clients: Clients, this: Round, replies: Iterable[Message]
) -> Sequence[ClientUpdate]:
    """Return the clients' usable updates, or the one of a method that trains in one place.

    Raises
    ------
    TrainingError
        If too few updates are usable.
    """
    if run.method.train_in_one_place is None:
        return usable_updates(run, clients, this, replies)
    images = sum(clients.counts[client].train for client in this.participants.values())
    update = run.method.train_in_one_place(run, this.inputs.num_clients, this, images)
    this.record.seconds_train = this.lap()
    return [update]


def protected(
    run: ServerRun, this: Round, updates: Sequence[ClientUpdate]
) -> Sequence[ClientUpdate]:
    """Return what the method may see of the updates; note how far they have moved, if one may."""
    config, sent = run.config, this.broadcast.model
    if config.privacy == "central":
        return [released(config, sent, updates, drawn=len(this.participants))]
    models, names = [u.arrays for u in updates], this.inputs.parameter_names
    if config.privacy == "none":  # of noised updates it would be the noise's
        this.record.add(client_drift(models, sent, names, sample_weights(updates)))
    if config.robust == "none":
        return updates
    if len(updates) < LEAST_OUTVOTED:
        logger.warning(
            'round %d: robust="%s" protects against nobody: of %d usable updates none can be '
            "outvoted",
            this.number,
            config.robust,
            len(updates),
        )
    mean = robust_mean(config.robust, sent, models, names, config.trim_share)
    return [ClientUpdate(-1, mean, num_examples=1, metrics=mean_metrics(updates))]


def mean_metrics(updates: Sequence[ClientUpdate]) -> dict[str, float]:
    """Return the means, weighted by samples, of the metrics that every client has sent."""
    weights = sample_weights(updates)
    return {
        name: sum(w * u.metrics[name] for w, u in zip(weights, updates, strict=True))
        for name in updates[0].metrics
        if all(name in u.metrics for u in updates)
    }
