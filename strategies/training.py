"""The middle of a round: from the participants' replies to the updates that the method is given."""

from collections.abc import Iterable, Sequence

from flwr.app import Message

from fedadb_app import messages
from fedadb_app.aggregation import ClientUpdate, client_drift, sample_weights
from fedadb_app.errors import TrainingError
from fedadb_app.refusals import UnusableReplyError
from strategies.central_privacy import released
from strategies.failures import absurdity, too_few
from strategies.participants import Clients
from strategies.replies import read_replies
from strategies.round import Round
from strategies.server_run import ServerRun


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


def protected(
    run: ServerRun, this: Round, updates: Sequence[ClientUpdate]
) -> Sequence[ClientUpdate]:
    """Return what the method may see of the updates; note how far they have moved, if one may."""
    sent, privacy = this.broadcast.model, run.config.privacy
    if privacy == "central":
        return [released(run.config, sent, updates, drawn=len(this.participants))]
    if privacy == "none":  # of noised updates it would be the noise's
        models, names = [u.arrays for u in updates], this.inputs.parameter_names
        this.record.add(client_drift(models, sent, names, sample_weights(updates)))
    return updates


def mean_metrics(updates: Sequence[ClientUpdate]) -> dict[str, float]:
    """Return the means, weighted by samples, of the metrics that every client has sent."""
    weights = sample_weights(updates)
    return {
        name: sum(w * u.metrics[name] for w, u in zip(weights, updates, strict=True))
        for name in updates[0].metrics
        if all(name in u.metrics for u in updates)
    }
