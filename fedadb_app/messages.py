"""The wire: what a message holds. Only this module knows a message's record keys.

A train message holds ``arrays`` (the model, one ArrayRecord, so that Flower's privacy mods stay
usable), ``config`` (round, rounds, learning rate) and one ConfigRecord for each attachment of the
method, with its tensors as safetensors bytes. A reply holds ``arrays`` and ``metrics``. An
evaluate message holds ``arrays`` and ``config``, its reply ``metrics``. A node that cannot do what
it is asked answers with one sentence. Nothing that describes a client's labels leaves it, but for
what its node's own configuration allows (`disclosed`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from safetensors.torch import load, save

from fedadb_app.aggregation import ClientUpdate
from fedadb_app.client_state import Ancestor
from fedadb_app.data.clients import PartitionClaim, SampleCounts
from fedadb_app.disclosure import (
    Sharing,
    check_disclosed,
    check_disclosed_metrics,
    disclosed,
    disclosed_metrics,
)
from fedadb_app.evaluation import ClientEvaluation, Evaluation
from fedadb_app.local_training import Attachment
from fedadb_app.models.classifier import StateDict
from fedadb_app.refusals import (
    UnusableReplyError,
    check_count,
    check_metrics,
    check_value,
    refuse_error,
)
from fedadb_app.wire_arrays import read_model, to_arrays, to_state_dict

_ARRAYS, _CONFIG, _METRICS, _IDENTITY = "arrays", "config", "metrics", "identity"
_TENSORS, _STATE_ROUND = "tensors", "state-round"
_PARTITION_ID, _NUM_PARTITIONS = "partition-id", "num-partitions"
_ROUND, _ROUNDS, _LEARNING_RATE = "round", "rounds", "learning-rate"
_ANCESTORS, _LAST_ROUNDS = "ancestors", "last-rounds"
_NUM_EXAMPLES = "num-examples"
_NUM_HELD_OUT, _NUM_VALIDATION = "num-held-out", "num-validation"
_NUM_CORRECT, _LOSS, _VALIDATION = "num-correct", "loss", "val-"
_CLASSES = ("class-examples", "class-correct")


@dataclass(frozen=True)
class Instruction:
    """What a client is told in a round, beside the model's arrays."""

    server_round: int
    num_rounds: int
    learning_rate: float
    attachments: Mapping[str, Attachment]
    ancestors: Sequence[Ancestor] = ()  # the runs that this one continues


Claim = PartitionClaim | SampleCounts
"""What a node says it holds: a part of the public data set, or so many samples of its own."""

_CLAIM_KEYS: Mapping[type[Claim], tuple[str, ...]] = {
    PartitionClaim: (_PARTITION_ID, _NUM_PARTITIONS),
    SampleCounts: (_NUM_EXAMPLES, _NUM_HELD_OUT, _NUM_VALIDATION),
}


# --- who are you ----------------------------------------------------------------------------


def identity_query(node_id: int) -> Message:
    """Ask a node which data it holds."""
    return Message(RecordDict(), dst_node_id=node_id, message_type="query")


def identity_reply(message: Message, claim: Claim) -> Message:
    """Answer `identity_query`."""
    numbers = dict(zip(_CLAIM_KEYS[type(claim)], astuple(claim), strict=True))
    if not numbers.get(_NUM_VALIDATION):
        numbers.pop(_NUM_VALIDATION, None)
    return Message(RecordDict({_IDENTITY: ConfigRecord(numbers)}), reply_to=message)


def read_identity(reply: Message, kind: type[Claim]) -> Claim:
    """Read a node's answer, a claim of that kind.

    Raises
    ------
    UnusableReplyError
        If the node answered with an error, or with something else than such a claim.
    """
    refuse_error(reply)
    record = {_NUM_VALIDATION: 0, **reply.content.config_records.get(_IDENTITY, ConfigRecord())}
    numbers = [n for n in (record.get(key) for key in _CLAIM_KEYS[kind]) if type(n) is int]
    if len(numbers) < len(_CLAIM_KEYS[kind]):
        raise UnusableReplyError(
            f"its identity lacks whole numbers {' and '.join(_CLAIM_KEYS[kind])}: {record}"
        )
    return kind(*numbers)


# --- train ----------------------------------------------------------------------------------


def train_content(arrays: ArrayRecord, instruction: Instruction) -> RecordDict:
    """Pack what all participants of a round receive."""
    content = RecordDict(
        {
            _ARRAYS: arrays,
            _CONFIG: ConfigRecord(
                {
                    _ROUND: instruction.server_round,
                    _ROUNDS: instruction.num_rounds,
                    _LEARNING_RATE: instruction.learning_rate,
                    _ANCESTORS: [a.run_id for a in instruction.ancestors],
                    _LAST_ROUNDS: [a.last_round for a in instruction.ancestors],
                }
            ),
        }
    )
    for name, attachment in instruction.attachments.items():
        tensors = {key: t.detach().cpu().contiguous() for key, t in attachment.tensors.items()}
        content[name] = ConfigRecord({_TENSORS: save(tensors), **attachment.scalars})
    return content


def train_message(content: RecordDict, node_id: int) -> Message:
    """Address a round's content to one node."""
    return Message(content, dst_node_id=node_id, message_type="train")


def read_train(message: Message) -> tuple[StateDict, Instruction]:
    """Unpack a train message on the client."""
    content = message.content
    config = content.config_records[_CONFIG]
    attachments = {}
    for name, record in content.config_records.items():
        if name == _CONFIG:
            continue
        scalars = {key: float(v) for key, v in record.items() if key != _TENSORS}  # type: ignore[arg-type]
        attachments[name] = Attachment(load(cast(bytes, record[_TENSORS])), scalars)
    ancestors = (cast(list[int], config[key]) for key in (_ANCESTORS, _LAST_ROUNDS))
    instruction = Instruction(
        server_round=int(config[_ROUND]),  # type: ignore[arg-type]
        num_rounds=int(config[_ROUNDS]),  # type: ignore[arg-type]
        learning_rate=float(config[_LEARNING_RATE]),  # type: ignore[arg-type]
        attachments=attachments,
        ancestors=[Ancestor(*pair) for pair in zip(*ancestors, strict=True)],
    )
    return to_state_dict(content.array_records[_ARRAYS]), instruction


def train_reply(
    message: Message,
    model: StateDict,
    num_examples: int,
    metrics: Mapping[str, float],
    state_round: int | None = None,
) -> Message:
    """Pack a client's trained model; `state_round` as in `ClientUpdate`."""
    if state_round is not None:
        metrics = {**metrics, _STATE_ROUND: state_round}
    content = RecordDict(
        {
            _ARRAYS: to_arrays(model),
            _METRICS: MetricRecord({_NUM_EXAMPLES: num_examples, **metrics}),
        }
    )
    return Message(content, reply_to=message)


def read_train_reply(
    reply: Message, client: int, expected: StateDict, num_samples: int
) -> ClientUpdate:
    """Unpack and check a client's reply on the server.

    Parameters
    ----------
    reply : Message
        What arrived.
    client : int
        Whose it is.
    expected : StateDict
        The global model: names, shapes and types of the tensors.
    num_samples : int
        How many samples the client holds, n_k.

    Raises
    ------
    UnusableReplyError
        If it is an error, lacks something or holds more, has other tensors than the global model,
        a value that is not finite or a metric that no training has, or claims another number of
        samples than it holds (the last, and a refusal, as a `RefusalError`).
    """
    refuse_error(reply)
    content = reply.content
    if _ARRAYS not in content.array_records or _METRICS not in content.metric_records:
        raise UnusableReplyError("the reply holds no model or no metrics")
    if len(content) > 2:
        odd = sorted(content.keys() - {_ARRAYS, _METRICS})
        raise UnusableReplyError(f"the reply holds other records: {odd[:3]}")
    metrics = dict(content.metric_records[_METRICS])
    num_examples = check_count(metrics.pop(_NUM_EXAMPLES, None), num_samples)
    state_round = metrics.pop(_STATE_ROUND, None)
    if not isinstance(state_round, int | None) or (state_round or 0) < 0:
        raise UnusableReplyError(f"{_STATE_ROUND}={state_round} is no round")
    scalars = check_metrics(metrics)
    model = read_model(content.array_records[_ARRAYS], expected)
    return ClientUpdate(client, model, num_examples, scalars, state_round)


# --- evaluate -------------------------------------------------------------------------------


def evaluate_content(server_round: int, arrays: ArrayRecord) -> RecordDict:
    """Pack the model that clients evaluate."""
    return RecordDict({_ARRAYS: arrays, _CONFIG: ConfigRecord({_ROUND: server_round})})


def evaluate_message(content: RecordDict, node_id: int) -> Message:
    """Address it to one node."""
    return Message(content, dst_node_id=node_id, message_type="evaluate")


def read_evaluate(message: Message) -> tuple[int, StateDict]:
    """Unpack an evaluate message on the client: the round and the model."""
    server_round = cast(int, message.content.config_records[_CONFIG][_ROUND])
    return server_round, to_state_dict(message.content.array_records[_ARRAYS])


def evaluate_reply(
    message: Message, found: Evaluation, sharing: Sharing, validated: Evaluation | None = None
) -> Message:
    """Pack counts, the loss and metrics, of the held-out samples and of those that choose a round.

    What tells of classes stays on the client unless it may leave.
    """
    metrics = MetricRecord(_told(found, sharing))
    if sharing.classes:
        metrics.update(zip(_CLASSES, disclosed(found.total, found.correct), strict=True))
    if validated is not None:
        metrics.update({_VALIDATION + k: v for k, v in _told(validated, sharing).items()})
    return Message(RecordDict({_METRICS: metrics}), reply_to=message)


def _told(found: Evaluation, sharing: Sharing) -> dict[str, int | float | list[int] | list[float]]:
    return {
        _NUM_EXAMPLES: int(found.total.sum()),
        _NUM_CORRECT: int(found.correct.sum()),
        _LOSS: found.loss,
        **disclosed_metrics(found, sharing),
    }


def read_evaluate_reply(reply: Message, held: SampleCounts, num_classes: int) -> ClientEvaluation:
    """Unpack and check a client's counts on the server.

    Raises
    ------
    UnusableReplyError
        If it is an error, counts other samples than the client holds out, or says of its classes,
        or as a metric, what cannot be, or the loss is not finite; the same of its validation part.
    """
    refuse_error(reply)
    metrics = reply.content.metric_records.get(_METRICS, MetricRecord())
    found = _read_told(metrics, held.held_out)
    told = [metrics[key] for key in _CLASSES if key in metrics]
    if told:
        classes = check_disclosed(told, num_classes, found.num_examples)
        found = replace(found, classes=classes)
    if held.validation:
        begin = len(_VALIDATION)
        of_it = {k[begin:]: v for k, v in metrics.items() if k.startswith(_VALIDATION)}
        found = replace(found, validation=_read_told(of_it, held.validation))
    return found


def _read_told(metrics: Mapping[str, object], num_samples: int) -> ClientEvaluation:
    total = check_count(metrics.get(_NUM_EXAMPLES), num_samples)
    correct = metrics.get(_NUM_CORRECT)
    if type(correct) is not int or not 0 <= correct <= total:
        raise UnusableReplyError(f"num-correct={correct} of {total} samples")
    loss = check_value(_LOSS, metrics.get(_LOSS))
    return ClientEvaluation(total, correct, loss, metrics=check_disclosed_metrics(metrics))
