"""The one Flower strategy of all methods: messages, participants, failures, record.

What a paper changes on the server is in its method's `ServerHalf`, which this strategy has; what
follows from it for a round is in `Round`.
"""

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedadb_app import messages
from fedadb_app.aggregation import ClientUpdate, all_finite, in_types_of
from fedadb_app.errors import TrainingError
from fedadb_app.local_training import Attachment
from fedadb_app.models.classifier import StateDict
from fedadb_app.process import release_freed_memory
from fedadb_app.runs.checkpoint import Checkpoint
from fedadb_app.runs.record import RoundRecord
from fedadb_app.wire_arrays import content_bytes, to_arrays
from strategies.dispatch import largest_first
from strategies.evaluation import (
    ask_evaluators,
    evaluate_on_server,
    gather_evaluations,
    on_test_set,
)
from strategies.outcome import Outcome
from strategies.participants import Clients
from strategies.resume import checkpoint_due, checkpoint_of, resume_clients
from strategies.roster import Roster
from strategies.round import Round
from strategies.server import RoundInputs
from strategies.server_run import ServerRun
from strategies.training import mean_metrics, protected, trained

logger = logging.getLogger("flwr.fedadb")


class FederatedStrategy(Strategy):
    """Rounds of one method, as Flower calls them.

    Flower counts rounds from 1, in a resumed run too, and hands each hook the arrays that
    `aggregate_train` has returned, with an empty configuration. Only `configure_train` looks at
    them: from there on `round` knows the number, and `global_model` holds the same tensors.

    Parameters
    ----------
    run : ServerRun
        What it works with.
    roster : Roster
        Which clients are connected.

    Attributes
    ----------
    half : ServerHalf
        The method's server half.
    global_model : StateDict
        theta, after the last concluded round.
    state : StateDict
        What the half returned to remember.
    clients : Clients
        Who takes part, and what is remembered of each.
    outcome : Outcome
        What the run ends with.
    round : Round
        The current round, from `configure_train` on.
    """

    round: Round

    def __init__(self, run: ServerRun, roster: Roster) -> None:
        self.run = run
        dataset = run.dataset if run.config.server_evaluates else None
        self.half = run.server_half(
            None if dataset is None else lambda model: on_test_set(run, model, dataset)
        )
        self.clients = Clients(run, roster)
        self.outcome = Outcome(run)
        self.global_model: StateDict = run.model.state_copy()
        self.state: StateDict = {}
        self.artifacts: Mapping[str, Attachment] = {}
        self._parameter_names = run.model.parameter_names()
        self._started = time.perf_counter()

    def kept(self) -> Mapping[str, Attachment]:
        """Return what the run's folder keeps: the global model, and what the method adds."""
        return {"model": Attachment(self.global_model), **self.artifacts}

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on with the model and the state of a checkpoint.

        Raises
        ------
        ConfigError
            If that run had other data, or divided them otherwise.
        """
        resume_clients(checkpoint, self.run, self.clients, self.global_model)
        self.global_model, self.state = checkpoint.model, checkpoint.state
        self.outcome.resume(checkpoint)

    # --- training -----------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the participants and address the round's content to them."""
        run, settings, mark = self.run, self.run.config, time.perf_counter()
        server_round += run.folder.finished_rounds
        participants = self.clients.for_training(server_round, grid)
        record = RoundRecord(server_round, learning_rate=settings.learning_rate_at(server_round))
        record.epsilon = self.clients.epsilon(server_round)
        inputs = self._inputs(server_round)
        before = time.perf_counter()
        broadcast = self.half.broadcast(inputs)
        record.seconds_anchors = time.perf_counter() - before
        self.round = Round(inputs, broadcast, record, participants, mark=mark)
        self.round.record.add(broadcast.diagnostics)
        self.artifacts = broadcast.artifacts
        if run.method.train_in_one_place is not None:
            return []
        if broadcast.model is not self.global_model:
            arrays = to_arrays(broadcast.model)
        instruction = messages.Instruction(
            server_round,
            settings.num_server_rounds,
            record.learning_rate,
            broadcast.attachments,
            run.folder.ancestors,
        )
        content = messages.train_content(arrays, instruction)
        record.bytes_down = content_bytes(content) * len(participants)
        self.round.sent = [messages.train_message(content, node) for node in participants]
        samples = [self.clients.counts[client].train for client in participants.values()]
        return largest_first(grid, self.round.sent, samples)

    def _inputs(self, server_round: int) -> RoundInputs:
        admitted, settings = self.clients.admitted, self.run.config
        return RoundInputs(
            server_round=server_round,
            num_rounds=settings.num_server_rounds,
            learning_rate_decay=settings.learning_rate_decay,
            num_clients=len(admitted),
            mean_examples=sum(held.train for held in admitted.values()) / len(admitted),
            model=self.global_model,
            parameter_names=self._parameter_names,
            state=self.state,
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, apply the failure policy, and update the global model.

        Raises
        ------
        TrainingError
            If too few updates are usable, or the new global model is not finite.
        """
        record = self.round.record
        record.seconds_train = self.round.lap() - record.seconds_anchors
        try:
            means = self._update(trained(self.run, self.clients, self.round, replies))
        except TrainingError:  # the last good model stays, for the run's folder
            self._close_round()
            raise
        arrays = to_arrays(self.global_model)
        record.seconds_aggregate = self.round.lap()
        return arrays, MetricRecord({name: float(mean) for name, mean in means.items()})

    def _update(self, updates: Sequence[ClientUpdate]) -> Mapping[str, float]:
        """Update the global model; return the clients' mean metrics."""
        this = self.round
        lost = self.clients.ledger.lost_states(this.number, updates)
        if lost is not None:
            this.record.add({"client_states_lost": lost})
        updates = protected(self.run, this, updates)
        update = self.half.update(this.inputs, updates)
        this.record.add(update.diagnostics)
        model = in_types_of(self.global_model, update.model)
        if not all_finite(model):
            raise TrainingError(
                f"round {this.number}: the global model has values that are not finite after "
                f"{self.run.method.title}'s update; lower learning-rate "
                f"(now {self.run.config.learning_rate:g})"
            )
        this.update = replace(update, model=model)
        self.global_model, self.state = model, dict(update.state)
        means = mean_metrics(updates)
        theirs = {name.replace("-", "_"): mean for name, mean in means.items()}
        this.record.diagnostics = theirs | this.record.diagnostics
        return means

    # --- evaluation, and the end of a round ---------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask clients that hold samples out to evaluate, where the configuration says so."""
        return ask_evaluators(self.run, self.clients, self.round)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Add up what the clients counted: accuracy and loss over all their held-out samples."""
        means = gather_evaluations(self.run, self.clients, self.round, replies)
        return MetricRecord({**means}) if means else None

    def evaluate_round(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Evaluate on the test set where asked, close the round; `EarlyStop` ends a run early."""
        if server_round == 0:  # Flower also asks before the first round
            return None
        evaluate_on_server(self.run, self.round)
        self.outcome.note(self.round)
        self._close_round()
        settings, record, folder = self.run.config, self.round.record, self.run.folder
        if checkpoint_due(settings, record.round):
            models = (self.global_model, self.state, self.outcome.best)
            checkpoint_of(self.run, self.clients, record.round, *models).write(folder.path)
        if settings.snapshot_every and record.round % settings.snapshot_every == 0:
            folder.write_snapshot(record.round, self.kept())
        self.outcome.end_if_hopeless()
        known = settings.server_evaluates and not math.isnan(record.accuracy)
        return MetricRecord({"accuracy": record.accuracy, "loss": record.loss}) if known else None

    def _close_round(self) -> None:
        record, folder = self.round.record, self.run.folder
        release_freed_memory(record.round)
        folder.add_round(record, self.run.schema.class_names)
        _log_progress(self.run, record, time.perf_counter() - self._started)

    def summary(self) -> None:
        """Log the method and its effective values."""
        logger.info("\t├── Method: %s", self.run.method.title)
        for key, value in self.run.params.model_dump(by_alias=True).items():
            logger.info("\t│\t%s = %s", key, value)
        logger.info("\t└── Results: %s", self.run.folder.path)


def _log_progress(run: ServerRun, record: RoundRecord, seconds: float) -> None:
    rounds = run.config.num_server_rounds
    done = record.round - run.folder.finished_rounds
    logger.info(
        "round %d/%d: accuracy %s %%, %d clients, %d failures, about %.0f s left",
        record.round,
        rounds,
        "–" if math.isnan(record.accuracy) else f"{record.accuracy:.2f}",
        record.clients,
        record.failures,
        seconds / done * (rounds - record.round),
    )
