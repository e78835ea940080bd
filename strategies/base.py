"""What every method's server half shares: who takes part, what fails, and the round's record.

A method overrides four hooks, each about its paper alone:

``broadcast_model``   which model goes out (default: the global model)
``attachments``       what goes with it (default: nothing)
``update``            the new global model from the clients' replies
``evaluated_model``   which model is evaluated (default: the global model)

With ``privacy="central"``, `update` is given one update, the noised mean of the round, and
everything after it is made of that: no method can release more. One that needs the single updates
says so (`needs_each_update`) and is refused.

What a method remembers between rounds lives in `FederatedStrategy.state`, named tensors only, which
a checkpoint saves and a resumed run begins with.
"""

import logging
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from fedadb_app import messages
from fedadb_app.aggregation import (
    ClientUpdate,
    absurd_change,
    all_finite,
    client_drift,
    difference,
    sample_weights,
    squared_norm,
)
from fedadb_app.config import RunConfig, Settings
from fedadb_app.data.arrays import ImageSchema
from fedadb_app.data.clients import SampleCounts, partition_counts, whole_test_part
from fedadb_app.data.partition import Partition
from fedadb_app.data.preparation import preparation_of
from fedadb_app.data.sources import ImageDataset
from fedadb_app.errors import ConfigError, TrainingError
from fedadb_app.evaluation import Evaluation, evaluate
from fedadb_app.local_training import Attachment
from fedadb_app.models.classifier import ImageClassifier, StateDict
from fedadb_app.privacy import epsilon_spent, largest_noised_norm, noised_mean
from fedadb_app.process import release_freed_memory
from fedadb_app.randomness import numpy_generator, secret_generator
from fedadb_app.runs.checkpoint import Checkpoint, Facts, effective_values
from fedadb_app.runs.writer import RoundRecord, RunFolder
from strategies.dispatch import largest_first
from strategies.ledger import ClientLedger
from strategies.replies import Answer, Answers, read_replies
from strategies.roster import Roster

logger = logging.getLogger("flwr.fedadb")

P = TypeVar("P", bound=Settings)


@dataclass
class ServerRun:
    """What a server half works with.

    Attributes
    ----------
    config : RunConfig
        The shared run configuration.
    model : ImageClassifier
        A working copy on the server's device; its weights are loaded as needed.
    schema : ImageSchema
        Classes, and the shape of an input.
    dataset : ImageDataset or None
        For evaluation; None where nobody but the nodes has data.
    partition : Partition or None
        Who holds what of the data set; None where each node has its own data.
    folder : RunFolder
        Where rounds are recorded.
    """

    config: RunConfig
    model: ImageClassifier
    schema: ImageSchema
    dataset: ImageDataset | None
    partition: Partition | None
    folder: RunFolder


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


class FederatedStrategy(Strategy, Generic[P]):
    """A method's server half as a Flower strategy.

    Parameters
    ----------
    run : ServerRun
        What it works with.
    roster : Roster
        Which clients are connected.
    params : Settings
        The method's own values.

    Raises
    ------
    ConfigError
        If the model holds what differential privacy cannot protect.
    """

    needs_each_update: ClassVar[bool] = False

    def __init__(self, run: ServerRun, roster: Roster, params: P) -> None:
        self.run = run
        self.roster = roster
        self.params = params
        self.parameter_names = run.model.parameter_names()
        self.global_model: StateDict = {
            name: tensor.detach().cpu().clone() for name, tensor in run.model.state_dict().items()
        }
        buffers = sorted(self.global_model.keys() - set(self.parameter_names))
        if run.config.privacy != "none" and buffers:
            raise ConfigError(
                f'privacy="{run.config.privacy}" needs a model without running statistics, which '
                f"noise would spoil, but this one has {buffers[0]}: use "
                f'norm="batch-local", or norm="group" if the head has none'
            )
        self.state: dict[str, Tensor] = {}
        self.ledger = ClientLedger()
        self.record = RoundRecord(round=0)
        self._participants: dict[int, int] = {}  # node id -> client
        self._sent: list[Message] = []
        self._broadcast = self.global_model
        self._evaluators: dict[int, int] = {}  # node id -> client
        self._dealt = None if run.partition is None else partition_counts(run.config, run.partition)
        self._mark = time.perf_counter()
        self._started = self._mark

    # --- what a method overrides --------------------------------------------------------

    def broadcast_model(self, server_round: int) -> StateDict:
        """Return the model the participants start from."""
        del server_round
        return self.global_model

    def attachments(self, server_round: int) -> Mapping[str, Attachment]:
        """Return what is sent beside the model, by record name."""
        del server_round
        return {}

    @abstractmethod
    def update(self, server_round: int, updates: Sequence[ClientUpdate]) -> StateDict:
        """Return the new global model; `updates` are in identity order, at least one."""

    def evaluated_model(self) -> StateDict:
        """Return the model that is evaluated after `update`."""
        return self.global_model

    def also_evaluated(self) -> Mapping[str, StateDict]:
        """Return further models whose accuracy goes to ``diagnostics.csv``, by name."""
        return {}

    def artifacts(self) -> Mapping[str, Attachment]:
        """Return what the run's folder keeps beside the global model, by file name."""
        return {}

    def kept(self) -> Mapping[str, Attachment]:
        """Return what the run's folder keeps: the global model, and what the method adds."""
        return {"model": Attachment(self.global_model), **self.artifacts()}

    # --- who holds how much -------------------------------------------------------------

    @property
    def counts(self) -> Mapping[int, SampleCounts]:
        """Samples of every client: as dealt out, or as each node with its own data has stated."""
        return self.roster.stated if self._dealt is None else self._dealt

    @property
    def num_examples(self) -> int:
        """Training samples of all clients."""
        return sum(held.train for held in self.counts.values())

    # --- a round, as Flower calls it ----------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the participants and address the round's content to them."""
        settings = self.run.config
        server_round += self.run.folder.finished_rounds  # Flower counts from 1, resumed or not
        self.record = RoundRecord(
            server_round, learning_rate=settings.learning_rate_at(server_round)
        )
        self._mark = time.perf_counter()
        self.roster.refresh(grid)
        if self.ledger.admit(self.roster.stated):
            self.run.folder.write_nodes(self.ledger.nodes, self.run.schema)
        clients = self.roster.nodes
        chosen = draw_participants(settings.seed, server_round, clients, settings.fraction_train)
        self._participants = {clients[client]: client for client in chosen}
        self.ledger.rounds_drawn.update(chosen)
        # A node that returns under a new id is an old client: there every round counts for all.
        drawn = server_round if settings.own_data else max(self.ledger.rounds_drawn.values())
        self.record.epsilon = epsilon_spent(settings, drawn)
        before = time.perf_counter()
        attachments = self.attachments(server_round)
        self.record.seconds_anchors = time.perf_counter() - before
        self._broadcast = self.broadcast_model(server_round)
        if self._broadcast is not self.global_model:
            arrays = messages.to_arrays(self._broadcast)
        instruction = messages.Instruction(
            server_round,
            settings.num_server_rounds,
            self.record.learning_rate,
            attachments,
            self.run.folder.ancestors,
        )
        content = messages.train_content(arrays, instruction)
        self.record.bytes_down = messages.content_bytes(content) * len(chosen)
        self._sent = [messages.train_message(content, node) for node in self._participants]
        counts = self.counts
        return largest_first(grid, self._sent, [counts[client].train for client in chosen])

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, apply the failure policy, and update the global model.

        Raises
        ------
        TrainingError
            If too few updates are usable, or the new global model is not finite.
        """
        received = time.perf_counter()
        server_round = self.record.round
        self.record.seconds_train = received - self._mark - self.record.seconds_anchors
        updates = self._usable(server_round, replies)
        lost = self.ledger.lost_states(server_round, updates)
        if lost is not None:
            self.record.diagnostics["client_states_lost"] = lost
        if self.run.config.privacy == "central":
            updates = [self._noised_mean(updates)]
        elif self.run.config.privacy == "none":  # of noised updates it would be the noise's
            models, weights = [u.arrays for u in updates], sample_weights(updates)
            drift = client_drift(models, self._broadcast, self.parameter_names, weights)
            self.record.diagnostics |= drift
        updated = {  # a method may compute in double precision; the wire keeps the model's types
            name: tensor.to(self.global_model[name].dtype)
            for name, tensor in self.update(server_round, updates).items()
        }
        if not all_finite(updated):  # the last good model stays, for the run's folder
            self._close_round()
            raise TrainingError(
                f"round {server_round}: the global model has values that are not finite after "
                f"{type(self).__name__}'s update; lower learning-rate "
                f"(now {self.run.config.learning_rate:g})"
            )
        self.global_model = updated
        weights = sample_weights(updates)
        means = {
            name: sum(w * u.metrics[name] for w, u in zip(weights, updates, strict=True))
            for name in updates[0].metrics
            if all(name in u.metrics for u in updates)
        }
        theirs = {name.replace("-", "_"): mean for name, mean in means.items()}
        self.record.diagnostics = theirs | self.record.diagnostics
        arrays = messages.to_arrays(self.global_model)
        self.record.seconds_aggregate = time.perf_counter() - received
        return arrays, MetricRecord({name: float(mean) for name, mean in means.items()})

    def _noised_mean(self, updates: Sequence[ClientUpdate]) -> ClientUpdate:
        """Return the round as one update without metrics, which nothing protects."""
        settings = self.run.config
        mean = noised_mean(
            self._broadcast,
            [update.arrays for update in updates],
            len(self._participants),
            settings.clipping_norm,
            settings.noise_multiplier,
            secret_generator(),
        )
        return ClientUpdate(client=-1, arrays=mean, num_examples=1)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask clients that hold samples out to evaluate, where the configuration says so."""
        settings = self.run.config
        server_round = self.record.round
        self._evaluators = {}
        if not settings.clients_evaluate or not self._evaluation_due(server_round):
            return []
        self._mark = time.perf_counter()
        clients, counts = self.roster.nodes, self.counts
        able = [client for client in clients if counts[client].held_out]
        if not able:
            logger.warning("round %d: no connected client holds samples out", server_round)
            return []
        chosen = draw_participants(
            settings.seed, server_round, able, settings.fraction_evaluate, "evaluators"
        )
        self._evaluators = {clients[client]: client for client in chosen}
        evaluated = messages.to_arrays(self.evaluated_model())
        content = messages.evaluate_content(server_round, evaluated)
        self.record.bytes_down += messages.content_bytes(content) * len(chosen)
        self._sent = [messages.evaluate_message(content, node) for node in self._evaluators]
        return self._sent

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Add up what the clients counted: accuracy and loss over all their held-out samples."""
        if not self._evaluators:
            return None
        server_round, counts = self.record.round, self.counts

        def read(reply: Message, client: int) -> messages.ClientEvaluation:
            return messages.read_evaluate_reply(reply, counts[client].held_out)

        found = self._read(server_round, self._evaluators, replies, read)
        answers = found.usable
        record = self.record
        record.diagnostics["evaluating_clients"] = len(answers)
        record.diagnostics["evaluation_failures"] = len(found.failures)
        record.seconds_evaluate += time.perf_counter() - self._mark
        total = sum(answer.num_examples for answer in answers.values())
        if not total:
            logger.warning("round %d: no client could evaluate", server_round)
            return None
        correct = sum(answer.num_correct for answer in answers.values())
        # In the order of identities, so that the sum does not depend on who was fastest.
        losses = [answers[client].loss * answers[client].num_examples for client in sorted(answers)]
        means = {"accuracy": 100 * correct / total, "loss": sum(losses) / total}
        if self.run.config.server_evaluates:
            record.diagnostics |= {f"{name}_clients": value for name, value in means.items()}
        else:
            record.accuracy, record.loss = means["accuracy"], means["loss"]
        return MetricRecord({**means})

    def evaluate_round(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Evaluate on the whole test set where the configuration asks for it; close the round."""
        server_round = self.record.round
        if server_round == 0:  # Flower also asks before the first round
            return None
        del arrays  # `global_model` holds the same tensors
        dataset = self.run.dataset
        if dataset and self.run.config.server_evaluates and self._evaluation_due(server_round):
            before = time.perf_counter()
            found = self._evaluate(self.evaluated_model(), dataset)
            for name, model in self.also_evaluated().items():
                accuracy = self._evaluate(model, dataset).accuracy
                self.record.diagnostics[f"accuracy_{name}"] = accuracy
            self.record.accuracy, self.record.loss = found.accuracy, found.loss
            self.record.class_accuracy = found.class_accuracy
            self.record.seconds_evaluate += time.perf_counter() - before
            if not math.isfinite(found.loss):
                logger.warning("round %d: the test loss is %s", server_round, found.loss)
        self._close_round()
        settings = self.run.config
        every = settings.checkpoint_every
        if every and (server_round % every == 0 or server_round == settings.num_server_rounds):
            self._write_checkpoint()
        if settings.snapshot_every and server_round % settings.snapshot_every == 0:
            self.run.folder.write_snapshot(server_round, self.kept())
        if not settings.server_evaluates or math.isnan(self.record.accuracy):
            return None
        return MetricRecord({"accuracy": self.record.accuracy, "loss": self.record.loss})

    def _evaluation_due(self, server_round: int) -> bool:
        settings = self.run.config
        last = server_round == settings.num_server_rounds
        return last or server_round % settings.evaluate_every == 0

    def _evaluate(self, model: StateDict, dataset: ImageDataset) -> Evaluation:
        self.run.model.load_state_dict(model)
        device = next(self.run.model.parameters()).device
        test = whole_test_part(dataset, device, preparation_of(self.run.config.dataset))
        return evaluate(self.run.model, test, self.run.config)

    def summary(self) -> None:
        """Log the method and its effective values."""
        logger.info("\t├── Method: %s", type(self).__name__)
        for key, value in self.params.model_dump(by_alias=True).items():
            logger.info("\t│\t%s = %s", key, value)
        logger.info("\t└── Results: %s", self.run.folder.path)

    # --- failures and the record --------------------------------------------------------

    def _usable(self, server_round: int, replies: Iterable[Message]) -> list[ClientUpdate]:
        """Return the usable updates in identity order; log why the others are not."""
        settings, counts = self.run.config, self.counts

        def read(reply: Message, client: int) -> ClientUpdate:
            held = counts[client].train
            update = messages.read_train_reply(reply, client, self.global_model, held)
            if problem := self._absurd(update):
                raise messages.UnusableReplyError(problem)
            return update

        found = self._read(server_round, self._participants, replies, read)
        self.record.clients, self.record.failures = len(found.usable), len(found.failures)
        sampled = len(self._participants)
        # Without the small allowance 7 % of 100 clients would be 7.000000000000001, so 8.
        needed = max(1, math.ceil(settings.min_success_fraction * sampled - 1e-9))
        if len(found.usable) < needed:
            self._close_round()
            client, reason = min(found.failures.items())
            raise TrainingError(
                f"round {server_round}: {len(found.usable)} of {sampled} clients gave a usable "
                f"update, {needed} needed (min-success-fraction="
                f"{settings.min_success_fraction:g}); client {client}: {reason}"
            )
        return [found.usable[client] for client in sorted(found.usable)]

    def _absurd(self, update: ClientUpdate) -> str:
        """Say why no honest client would have sent this update; nothing if one might."""
        settings, sent = self.run.config, self._broadcast
        if settings.privacy != "local":
            factor = settings.max_relative_update
            return absurd_change(update.arrays, sent, self.parameter_names, factor)
        limit = largest_noised_norm(settings, sum(tensor.numel() for tensor in sent.values()))
        moved = math.sqrt(squared_norm(difference(update.arrays, sent, sent)))
        if moved <= limit:
            return ""
        return f"its noised update has the norm {moved:.4g}, and an honest one at most {limit:.4g}"

    def _read(
        self,
        server_round: int,
        clients: Mapping[int, int],
        replies: Iterable[Message],
        read: Callable[[Message, int], Answer],
    ) -> Answers[Answer]:
        timeout = self.run.config.round_timeout
        found = read_replies(server_round, self._sent, clients, replies, read, self.roster, timeout)
        self.record.bytes_up += found.num_bytes
        return found

    def _close_round(self) -> None:
        release_freed_memory(self.record.round)
        self.run.folder.add_round(self.record, self.run.schema.class_names)
        seconds = time.perf_counter() - self._started
        rounds = self.run.config.num_server_rounds
        done = self.record.round - self.run.folder.finished_rounds
        left = seconds / done * (rounds - self.record.round)
        logger.info(
            "round %d/%d: accuracy %s %%, %d clients, %d failures, about %.0f s left",
            self.record.round,
            rounds,
            "–" if math.isnan(self.record.accuracy) else f"{self.record.accuracy:.2f}",
            self.record.clients,
            self.record.failures,
            left,
        )

    # --- checkpoint and resume ----------------------------------------------------------

    def _write_checkpoint(self) -> None:
        run, folder = self.run, self.run.folder
        facts = Facts(
            round=self.record.round,
            run_id=folder.run_id,
            ancestors=folder.ancestors,
            config=effective_values(run.config, self.params),
            partition=self._partition_hash(),
            state_rounds=self.ledger.state_rounds,
            rounds_drawn=dict(self.ledger.rounds_drawn),
            nodes={node: (held.train, held.held_out) for node, held in self.ledger.nodes.items()},
            tables=folder.tables(),
            seconds=folder.seconds,
        )
        Checkpoint(facts, self.global_model, self.state).write(folder.path)

    def _partition_hash(self) -> str:
        """Tell one partition from another; of nodes with their own data nothing is known."""
        return self.run.partition.hash if self.run.partition else ""

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on with the model and the state of a checkpoint.

        Raises
        ------
        ConfigError
            If that run had other data, or divided them otherwise.
        """
        facts, config = checkpoint.facts, self.run.config
        named = f'resume-from="{config.resume_from}"'
        shapes = [{n: t.shape for n, t in m.items()} for m in (checkpoint.model, self.global_model)]
        if facts.partition != self._partition_hash() or shapes[0] != shapes[1]:
            raise ConfigError(
                f"{named}: the data, or how the clients share them, are not those of that run; a "
                f"resumed run needs the same data and as many clients"
            )
        self.global_model = checkpoint.model
        self.state = checkpoint.state
        logger.info("%s: going on after round %d of that run", named, facts.round)
        on_disk = config.client_state_dir and facts.config["client-state-dir"]
        if facts.state_rounds and not on_disk:
            logger.warning(
                "%s: %d clients kept a state between rounds in that run, which is lost because "
                "client-state-dir is not set in both runs; they start anew",
                named,
                len(facts.state_rounds),
            )
        self.ledger.resume(facts, named, self.roster.stated)
        if self.ledger.nodes:
            self.run.folder.write_nodes(self.ledger.nodes, self.run.schema)
