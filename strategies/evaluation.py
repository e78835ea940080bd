"""The end of a round: when and how its model is evaluated, on the server or by the clients."""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence

from flwr.app import Message

from fedadb_app.config import RunConfig
from fedadb_app.data.clients import validation_part, whole_test_part
from fedadb_app.data.prepared import ImageDataset
from fedadb_app.data.registry import preparation_of
from fedadb_app.evaluation import ClientEvaluation, Evaluation, evaluate
from fedadb_app.evaluation_messages import (
    EvaluateInstruction,
    evaluate_content,
    evaluate_message,
    read_evaluate_reply,
)
from fedadb_app.metrics import metrics_of
from fedadb_app.models.classifier import StateDict
from fedadb_app.runs.personalised import Personalised, over_personalised, write_personalised
from fedadb_app.runs.record import Part
from fedadb_app.runs.sites import Site, over_sites, write_sites
from fedadb_app.wire_arrays import content_bytes, to_arrays
from strategies.participants import Clients
from strategies.replies import read_replies
from strategies.round import Round
from strategies.server_run import ServerRun

logger = logging.getLogger("flwr.fedadb")


def evaluation_due(config: RunConfig, server_round: int) -> bool:
    """Whether a round's model is evaluated: every ``evaluate-every`` rounds, and the last."""
    last = server_round == config.num_server_rounds
    return last or server_round % config.evaluate_every == 0


def ask_evaluators(run: ServerRun, clients: Clients, this: Round) -> list[Message]:
    """Ask clients that hold samples out to evaluate, where the configuration says so."""
    if not run.config.clients_evaluate or not evaluation_due(run.config, this.number):
        return []
    this.lap()
    this.evaluators = clients.for_evaluation(this.number)
    if not this.evaluators:
        return []
    instruction = EvaluateInstruction(this.number, run.folder.ancestors, personal_heads(run, this))
    content = evaluate_content(to_arrays(this.evaluated), instruction)
    this.record.bytes_down += content_bytes(content) * len(this.evaluators)
    asked = [evaluate_message(content, node) for node in this.evaluators]
    this.sent = asked
    return asked


def personal_heads(run: ServerRun, this: Round) -> tuple[str, ...]:
    """Return the heads for which clients personalise the round's model, the evaluated one first."""
    config = run.config
    if not config.personalise_epochs or this.number < config.num_server_rounds:
        return ()
    return run.model.evaluated_head, *this.other_heads


def gather_evaluations(
    run: ServerRun, clients: Clients, this: Round, replies: Iterable[Message]
) -> dict[str, float]:
    """Note what the clients counted; return accuracy and loss over all their held-out samples."""
    if not this.evaluators:
        return {}
    counts, record = clients.counts, this.record
    classes, heads = run.schema.num_classes, personal_heads(run, this)

    def read(reply: Message, client: int) -> ClientEvaluation:
        return read_evaluate_reply(reply, counts[client], classes, len(heads))

    found = read_replies(this, this.evaluators, replies, read, clients.roster, run.config)
    record.diagnostics["evaluating_clients"] = len(found.usable)
    record.diagnostics["evaluation_failures"] = len(found.failures)
    record.seconds_evaluate += this.lap()
    means = pooled(found.usable)
    if found.usable:
        _note_sites(run, this, found.usable)
    if heads:
        _note_personalised(run, found.usable, heads)
    if not means:
        logger.warning("round %d: no client could evaluate", this.number)
    elif run.config.server_evaluates:
        record.diagnostics |= {f"{name}_clients": value for name, value in means.items()}
    else:
        record.accuracy, record.loss = means["accuracy"], means["loss"]
    return means


def _note_sites(run: ServerRun, this: Round, answers: Mapping[int, ClientEvaluation]) -> None:
    sites = {
        client: Site(a.num_examples, a.num_correct, *(a.classes or ((), ())), a.metrics)
        for client, a in answers.items()
    }
    this.record.metrics["clients"] = over_sites(sites)
    validated = {client: a.validation for client, a in answers.items() if a.validation}
    if validated:
        this.record.metrics["val"] = over_sites(
            {
                k: Site(v.num_examples, v.num_correct, metrics=v.metrics)
                for k, v in validated.items()
            }
        )
    write_sites(run.folder.path, this.number, sites, run.schema.class_names)


def _note_personalised(
    run: ServerRun, answers: Mapping[int, ClientEvaluation], heads: Sequence[str]
) -> None:
    sites = {
        client: Personalised(answer.num_examples, *answer.personal)
        for client, answer in answers.items()
        if answer.personal is not None
    }
    if without := sorted(answers.keys() - sites.keys()):
        logger.warning(
            "clients %s have no personalised model: their training diverged",
            ", ".join(map(str, without)),
        )
    if sites:
        run.folder.personalised = over_personalised(sites, heads)
        write_personalised(run.folder.path, sites, heads)


def pooled(answers: Mapping[int, ClientEvaluation]) -> dict[str, float]:
    """Return ``accuracy`` and ``loss`` over all samples that clients hold out; empty if none.

    Parameters
    ----------
    answers : Mapping[int, ClientEvaluation]
        By client.
    """
    total = sum(answer.num_examples for answer in answers.values())
    if not total:
        return {}
    correct = sum(answer.num_correct for answer in answers.values())
    # In the order of identities, so that the sum does not depend on who was fastest.
    losses = [answers[client].loss * answers[client].num_examples for client in sorted(answers)]
    return {"accuracy": 100 * correct / total, "loss": sum(losses) / total}


def evaluate_on_server(run: ServerRun, this: Round) -> None:
    """Note what the round's models find on the whole test set, where it is asked for."""
    dataset, record = run.dataset, this.record
    due = run.config.server_evaluates and evaluation_due(run.config, this.number)
    if dataset is None or not due:
        return
    this.lap()
    found = None if this.update is None else this.update.evaluation
    if found is None:
        this.found = evaluate_parts(run, this.evaluated, this.other_heads)
        found = this.found["test"]
    record.diagnostics |= {f"accuracy_{name}": value for name, value in found.heads.items()}
    for name, model in this.also_evaluated.items():
        record.diagnostics[f"accuracy_{name}"] = on_test_set(run, model, dataset).accuracy
    record.accuracy, record.loss = found.accuracy, found.loss
    record.class_accuracy = found.class_accuracy
    for part, evaluation in this.found.items():
        measured = metrics_of(evaluation.labels, evaluation.probabilities)
        record.metrics[part] = list(measured.values())
    record.seconds_evaluate += this.lap()
    if not math.isfinite(found.loss):
        logger.warning("round %d: the test loss is %s", this.number, found.loss)


def evaluate_parts(
    run: ServerRun, model: StateDict, other_heads: Sequence[str] = ()
) -> dict[Part, Evaluation]:
    """Return what a model finds on the server's test part and, where there is one, validation."""
    if run.dataset is None:
        return {}
    found: dict[Part, Evaluation] = {"test": on_test_set(run, model, run.dataset, other_heads)}
    if run.config.validates:
        part = validation_part(run.config, run.dataset, next(run.model.parameters()).device)
        found["val"] = evaluate(run.model, part, run.config)
    return found


def on_test_set(
    run: ServerRun, model: StateDict, dataset: ImageDataset, other_heads: Sequence[str] = ()
) -> Evaluation:
    """Return what a model, and further heads of it, find on the whole test set."""
    run.model.load_state_dict(model)
    device = next(run.model.parameters()).device
    test = whole_test_part(dataset, device, preparation_of(run.config.dataset))
    return evaluate(run.model, test, run.config, other_heads)
