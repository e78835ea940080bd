"""The wire of an evaluation: what asks a client to evaluate a model, and what it answers.

An evaluate message holds ``arrays`` and ``config``, its reply ``metrics``. What is shared with the
other messages stands in `messages`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedadb_app.client_state import Ancestor
from fedadb_app.data.clients import SampleCounts
from fedadb_app.disclosure import (
    Sharing,
    check_disclosed,
    check_disclosed_metrics,
    disclosed,
    disclosed_metrics,
)
from fedadb_app.evaluation import ClientEvaluation, Evaluation
from fedadb_app.messages import (
    ARRAYS,
    CONFIG,
    METRICS,
    NUM_EXAMPLES,
    ROUND,
    lineage,
    read_lineage,
)
from fedadb_app.models.classifier import StateDict
from fedadb_app.refusals import (
    UnusableReplyError,
    are_counts,
    check_count,
    check_value,
    refuse_error,
)
from fedadb_app.wire_arrays import to_state_dict

_NUM_CORRECT, _LOSS, _VALIDATION = "num-correct", "loss", "val-"
_CLASSES = ("class-examples", "class-correct")
_HEADS, _PERSONAL = "heads", ("correct-before", "correct-after")


@dataclass(frozen=True)
class EvaluateInstruction:
    """What a client that evaluates is told, beside the model's arrays."""

    server_round: int
    ancestors: Sequence[Ancestor] = ()  # as in `Instruction`
    heads: Sequence[str] = ()  # to personalise the model for, the evaluated one first; () = not to


def evaluate_content(arrays: ArrayRecord, instruction: EvaluateInstruction) -> RecordDict:
    """Pack the model that clients evaluate."""
    config = ConfigRecord(
        {
            ROUND: instruction.server_round,
            **lineage(instruction.ancestors),
            _HEADS: list(instruction.heads),
        }
    )
    return RecordDict({ARRAYS: arrays, CONFIG: config})


def evaluate_message(content: RecordDict, node_id: int) -> Message:
    """Address it to one node."""
    return Message(content, dst_node_id=node_id, message_type="evaluate")


def read_evaluate(message: Message) -> tuple[StateDict, EvaluateInstruction]:
    """Unpack an evaluate message on the client."""
    config = message.content.config_records[CONFIG]
    instruction = EvaluateInstruction(
        cast(int, config[ROUND]), read_lineage(config), cast(list[str], config[_HEADS])
    )
    return to_state_dict(message.content.array_records[ARRAYS]), instruction


def evaluate_reply(
    message: Message,
    found: Evaluation,
    sharing: Sharing,
    validated: Evaluation | None = None,
    personal: tuple[Sequence[int], Sequence[int]] | None = None,
) -> Message:
    """Pack counts, the loss and metrics, of the held-out samples and of those that choose a round.

    What tells of classes stays on the client unless it may leave. `personal` as in
    `ClientEvaluation`.
    """
    metrics = MetricRecord(_told(found, sharing))
    if sharing.classes:
        metrics.update(zip(_CLASSES, disclosed(found.total, found.correct), strict=True))
    if validated is not None:
        metrics.update({_VALIDATION + k: v for k, v in _told(validated, sharing).items()})
    if personal is not None:
        metrics.update({name: list(c) for name, c in zip(_PERSONAL, personal, strict=True)})
    return Message(RecordDict({METRICS: metrics}), reply_to=message)


def _told(found: Evaluation, sharing: Sharing) -> dict[str, int | float | list[int] | list[float]]:
    return {
        NUM_EXAMPLES: int(found.total.sum()),
        _NUM_CORRECT: int(found.correct.sum()),
        _LOSS: found.loss,
        **disclosed_metrics(found, sharing),
    }


def read_evaluate_reply(
    reply: Message, held: SampleCounts, num_classes: int, num_heads: int = 0
) -> ClientEvaluation:
    """Unpack and check a client's counts on the server.

    Parameters
    ----------
    reply : Message
        What arrived.
    held : SampleCounts
        How many samples the client has.
    num_classes : int
        C.
    num_heads : int
        For how many heads it was asked to personalise the model; what was not asked is not read.

    Raises
    ------
    UnusableReplyError
        If it is an error, counts other samples than the client holds out, or says of its classes or
        heads, or as a metric, what cannot be, or the loss is not finite; the same of its validation
        part.
    """
    refuse_error(reply)
    metrics = reply.content.metric_records.get(METRICS, MetricRecord())
    found = _read_told(metrics, held.held_out)
    told = [metrics[key] for key in _CLASSES if key in metrics]
    if told:
        classes = check_disclosed(told, num_classes, found.num_examples)
        found = replace(found, classes=classes)
    if held.validation:
        begin = len(_VALIDATION)
        of_it = {k[begin:]: v for k, v in metrics.items() if k.startswith(_VALIDATION)}
        found = replace(found, validation=_read_told(of_it, held.validation))
    if num_heads and any(key in metrics for key in _PERSONAL):
        counts = [metrics.get(key) for key in _PERSONAL]
        found = replace(found, personal=_check_personal(counts, num_heads, held.held_out))
    return found


def _check_personal(
    told: Sequence[object], num_heads: int, total: int
) -> tuple[Sequence[int], Sequence[int]]:
    if len(told) < 2 or not are_counts(told, num_heads, 0, total):
        raise UnusableReplyError(
            f"its counts of the personalised model are not {num_heads} whole numbers up to {total}"
        )
    before, after = cast(Sequence[Sequence[int]], told)
    return before, after


def _read_told(metrics: Mapping[str, object], num_samples: int) -> ClientEvaluation:
    total = check_count(metrics.get(NUM_EXAMPLES), num_samples)
    correct = metrics.get(_NUM_CORRECT)
    if type(correct) is not int or not 0 <= correct <= total:
        raise UnusableReplyError(f"num-correct={correct} of {total} samples")
    loss = check_value(_LOSS, metrics.get(_LOSS))
    return ClientEvaluation(total, correct, loss, metrics=check_disclosed_metrics(metrics))
