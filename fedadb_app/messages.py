"""The wire: what a message holds. Only this module and that of evaluation know its record keys.

A train message holds ``arrays`` (the model, one ArrayRecord, so that Flower's privacy mods stay
usable), ``config`` (round, rounds, learning rate) and one ConfigRecord for each attachment of the
method, with its tensors as safetensors bytes. A reply holds ``arrays`` and ``metrics``. A node
that cannot do what it is asked answers with one sentence. Nothing that describes a client's labels
leaves it, but for what its node's own configuration allows (`evaluation_messages`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from safetensors.torch import load, save

from fedadb_app.aggregation import ClientUpdate
from fedadb_app.client_state import Ancestor
from fedadb_app.data.clients import PartitionClaim, SampleCounts
from fedadb_app.local_training import Attachment
from fedadb_app.models.classifier import StateDict
from fedadb_app.refusals import UnusableReplyError, check_count, check_metrics, refuse_error
from fedadb_app.wire_arrays import read_model, to_arrays, to_state_dict

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
_IDENTITY = "identity"
_TENSORS, _STATE_ROUND = "tensors", "state-round"
_PARTITION_ID, _NUM_PARTITIONS = "partition-id", "num-partitions"
ROUND, _ROUNDS, _LEARNING_RATE = "round", "rounds", "learning-rate"
_ANCESTORS, _LAST_ROUNDS = "ancestors", "last-rounds"
NUM_EXAMPLES = "num-examples"
_NUM_HELD_OUT, _NUM_VALIDATION = "num-held-out", "num-validation"


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
    SampleCounts: (NUM_EXAMPLES, _NUM_HELD_OUT, _NUM_VALIDATION),
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
            ARRAYS: arrays,
            CONFIG: ConfigRecord(
                {
                    ROUND: instruction.server_round,
                    _ROUNDS: instruction.num_rounds,
                    _LEARNING_RATE: instruction.learning_rate,
                    **lineage(instruction.ancestors),
                }
            ),
        }
    )
    for name, attachment in instruction.attachments.items():
        tensors = {key: t.detach().cpu().contiguous() for key, t in attachment.tensors.items()}
        content[name] = ConfigRecord({_TENSORS: save(tensors), **attachment.scalars})
    return content


def lineage(ancestors: Sequence[Ancestor]) -> dict[str, list[int]]:
    """Return the runs that this one continues, as a message has them."""
    return {
        _ANCESTORS: [a.run_id for a in ancestors],
        _LAST_ROUNDS: [a.last_round for a in ancestors],
    }


def read_lineage(config: ConfigRecord) -> list[Ancestor]:
    """Return what `lineage` has packed."""
    columns = (cast(list[int], config[key]) for key in (_ANCESTORS, _LAST_ROUNDS))
    return [Ancestor(*pair) for pair in zip(*columns, strict=True)]


def train_message(content: RecordDict, node_id: int) -> Message:
    """Address a round's content to one node."""
    return Message(content, dst_node_id=node_id, message_type="train")


def read_train(message: Message) -> tuple[StateDict, Instruction]:
    """Unpack a train message on the client."""
    content = message.content
    config = content.config_records[CONFIG]
    attachments = {}
    for name, record in content.config_records.items():
        if name == CONFIG:
            continue
        scalars = {key: float(v) for key, v in record.items() if key != _TENSORS}  # type: ignore[arg-type]
        attachments[name] = Attachment(load(cast(bytes, record[_TENSORS])), scalars)
    instruction = Instruction(
        server_round=int(config[ROUND]),  # type: ignore[arg-type]
        num_rounds=int(config[_ROUNDS]),  # type: ignore[arg-type]
        learning_rate=float(config[_LEARNING_RATE]),  # type: ignore[arg-type]
        attachments=attachments,
        ancestors=read_lineage(config),
    )
    return to_state_dict(content.array_records[ARRAYS]), instruction


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
            ARRAYS: to_arrays(model),
            METRICS: MetricRecord({NUM_EXAMPLES: num_examples, **metrics}),
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
    if ARRAYS not in content.array_records or METRICS not in content.metric_records:
        raise UnusableReplyError("the reply holds no model or no metrics")
    if len(content) > 2:
        odd = sorted(content.keys() - {ARRAYS, METRICS})
        raise UnusableReplyError(f"the reply holds other records: {odd[:3]}")
    metrics = dict(content.metric_records[METRICS])
    num_examples = check_count(metrics.pop(NUM_EXAMPLES, None), num_samples)
    state_round = metrics.pop(_STATE_ROUND, None)
    if not isinstance(state_round, int | None) or (state_round or 0) < 0:
        raise UnusableReplyError(f"{_STATE_ROUND}={state_round} is no round")
    scalars = check_metrics(metrics)
    model = read_model(content.array_records[ARRAYS], expected)
    return ClientUpdate(client, model, num_examples, scalars, state_round)
