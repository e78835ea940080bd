"""The wire: what a message holds. Only this module knows record keys.

A train message holds ``arrays`` (the model, one ArrayRecord, so that Flower's privacy mods stay
usable), ``config`` (round, rounds, learning rate) and one ConfigRecord for each attachment of the
method, with its tensors as safetensors bytes. A reply holds ``arrays`` and ``metrics``. Nothing
that describes a client's labels leaves the client.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from safetensors.torch import load, save

from fedadb_app.aggregation import ClientUpdate, all_finite
from fedadb_app.client_state import Ancestor, StateFolder
from fedadb_app.config import RunConfig
from fedadb_app.errors import DataError
from fedadb_app.local_training import Attachment
from fedadb_app.models import StateDict

_ARRAYS, _CONFIG, _METRICS, _IDENTITY = "arrays", "config", "metrics", "identity"
_TENSORS, _STATE, _STATE_ROUND = "tensors", "client-state", "state-round"
_PARTITION_ID, _NUM_PARTITIONS = "partition-id", "num-partitions"
_ROUND, _ROUNDS, _LEARNING_RATE = "round", "rounds", "learning-rate"
_ANCESTORS, _LAST_ROUNDS = "ancestors", "last-rounds"
_NUM_EXAMPLES = "num-examples"


class UnusableReplyError(Exception):
    """A reply cannot be used; the message is the reason, for the log."""


@dataclass(frozen=True)
class Instruction:
    """What a client is told in a round, beside the model's arrays."""

    server_round: int
    num_rounds: int
    learning_rate: float
    attachments: Mapping[str, Attachment]
    ancestors: Sequence[Ancestor] = ()  # the runs that this one continues


@dataclass(frozen=True)
class PartitionClaim:
    """Which part of a public data set a node holds: part `partition_id` of `num_partitions`."""

    partition_id: int
    num_partitions: int


def partition_claim(context: Context) -> PartitionClaim | None:
    """Read a node's claim from its ``--node-config`` (the simulation sets it itself)."""
    config = context.node_config
    if _PARTITION_ID not in config or _NUM_PARTITIONS not in config:
        return None
    claim = (config[_PARTITION_ID], config[_NUM_PARTITIONS])
    if not all(type(value) is int for value in claim):
        raise DataError(
            f"--node-config: {_PARTITION_ID}={claim[0]} and {_NUM_PARTITIONS}={claim[1]} must be "
            f"whole numbers"
        )
    return PartitionClaim(int(claim[0]), int(claim[1]))


# --- who are you ----------------------------------------------------------------------------


def identity_query(node_id: int) -> Message:
    """Ask a node which partition it holds."""
    return Message(RecordDict(), dst_node_id=node_id, message_type="query")


def identity_reply(message: Message, context: Context) -> Message:
    """Answer `identity_query`; a node with its own data has no partition."""
    claim = partition_claim(context)
    record = ConfigRecord()
    if claim is not None:
        record = ConfigRecord(
            {_PARTITION_ID: claim.partition_id, _NUM_PARTITIONS: claim.num_partitions}
        )
    return Message(RecordDict({_IDENTITY: record}), reply_to=message)


def read_identity(reply: Message) -> PartitionClaim | None:
    """Read a node's answer.

    Raises
    ------
    UnusableReplyError
        If the node answered with an error, or with something else than its identity.
    """
    _refuse_error(reply)
    record = reply.content.config_records.get(_IDENTITY)
    if record is None:
        raise UnusableReplyError("the reply holds no identity")
    if not record:
        return None
    partition_id, num_partitions = record.get(_PARTITION_ID), record.get(_NUM_PARTITIONS)
    if not isinstance(partition_id, int) or not isinstance(num_partitions, int):
        raise UnusableReplyError(f"its identity is no pair of whole numbers: {dict(record)}")
    return PartitionClaim(partition_id, num_partitions)


class Asked:
    """Which nodes some messages went to, once these have been pushed; one look-up a reply.

    For a node that is gone, or a message that is lost, the SuperLink replies in its own name; what
    tells then is the id of the message.
    """

    def __init__(self, sent: Iterable[Message]) -> None:
        asked = [message.metadata for message in sent]
        self._by_id = {a.message_id: a.dst_node_id for a in asked if a.message_id}
        self._nodes = {a.dst_node_id for a in asked}

    def node(self, reply: Message) -> int | None:
        """Return the node that a reply is about, or None where it answers none of the messages."""
        source = reply.metadata.src_node_id
        return self._by_id.get(
            reply.metadata.reply_to_message_id, source if source in self._nodes else None
        )


def _refuse_error(reply: Message) -> None:
    if reply.has_error():
        reason = reply.error.reason or f"error code {reply.error.code} without a reason"
        raise UnusableReplyError(reason)


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
        If it is an error, lacks something, has other tensors than the global model, holds a
        value that is not finite, or claims another number of samples than it holds.
    """
    _refuse_error(reply)
    content = reply.content
    if _ARRAYS not in content.array_records or _METRICS not in content.metric_records:
        raise UnusableReplyError("the reply holds no model or no metrics")
    metrics = dict(content.metric_records[_METRICS])
    num_examples = metrics.pop(_NUM_EXAMPLES, None)
    if not isinstance(num_examples, int) or num_examples != num_samples:
        raise UnusableReplyError(
            f"num-examples={num_examples}, but this client holds {num_samples} samples"
        )
    state_round = metrics.pop(_STATE_ROUND, None)
    if not isinstance(state_round, int | None) or (state_round or 0) < 0:
        raise UnusableReplyError(f"{_STATE_ROUND}={state_round} is no round")
    scalars = {name: float(v) for name, v in metrics.items() if isinstance(v, int | float)}
    try:
        model = to_state_dict(content.array_records[_ARRAYS])
    except Exception as error:  # whatever a client's bytes do to the parser, the run goes on
        raise UnusableReplyError(f"its model cannot be read: {error}") from error
    if model.keys() != expected.keys():
        odd = sorted(model.keys() ^ expected.keys())
        raise UnusableReplyError(f"its model's tensors are not the global model's: {odd[:3]}")
    for name, tensor in model.items():
        if name.endswith("running_var") and bool((tensor < 0).any()):
            raise UnusableReplyError(f"tensor {name} is a variance but holds negative values")
        if tensor.shape != expected[name].shape:
            raise UnusableReplyError(
                f"tensor {name} has shape {tuple(tensor.shape)}, "
                f"expected {tuple(expected[name].shape)}"
            )
        if tensor.dtype != expected[name].dtype:
            raise UnusableReplyError(
                f"tensor {name} has type {tensor.dtype}, expected {expected[name].dtype}"
            )
    if not all_finite(model):
        raise UnusableReplyError("its model holds values that are not finite")
    if not all(math.isfinite(v) for v in scalars.values()):
        raise UnusableReplyError(f"its metrics are not finite: {scalars}")
    return ClientUpdate(client, model, num_examples, scalars, state_round)


# --- a client's memory ------------------------------------------------------------------------


class ContextState:
    """A client's state in Flower's context: in the memory of its node, and gone with it.

    Parameters
    ----------
    context : Context
        The client's context in this run.
    """

    def __init__(self, context: Context) -> None:
        self._state = context.state

    def read(self, server_round: int) -> tuple[int, StateDict]:
        """Return the round of what this client kept, and the tensors; 0 where there is nothing."""
        del server_round  # this run's rounds only go forward
        if _STATE not in self._state.array_records:
            return 0, {}
        number = self._state.config_records[_STATE_ROUND][_ROUND]
        return int(number), to_state_dict(self._state.array_records[_STATE])  # type: ignore[arg-type]

    def write(self, server_round: int, state: StateDict) -> None:
        """Keep the state after a round; it never leaves this client."""
        self._state[_STATE] = to_arrays(state)
        self._state[_STATE_ROUND] = ConfigRecord({_ROUND: server_round})


def client_state(
    context: Context, config: RunConfig, client: int, instruction: Instruction
) -> ContextState | StateFolder:
    """Return where a client keeps its state between rounds."""
    if not config.client_state_dir:
        return ContextState(context)
    return StateFolder(
        config.client_state_dir,
        client,
        context.run_id,
        instruction.ancestors,
        config.checkpoint_every,
    )


# --- arrays ---------------------------------------------------------------------------------


def to_arrays(model: StateDict) -> ArrayRecord:
    """Pack tensors for the wire, on the CPU."""
    return ArrayRecord({name: tensor.detach().cpu() for name, tensor in model.items()})


def to_state_dict(arrays: ArrayRecord) -> StateDict:
    """Unpack tensors from the wire."""
    return {name: torch.from_numpy(array.numpy()) for name, array in arrays.items()}


def content_bytes(content: RecordDict) -> int:
    """Return the size of a message's payload: array data and byte strings."""
    arrays = sum(len(a.data) for record in content.array_records.values() for a in record.values())
    blobs = sum(
        len(value)
        for record in content.config_records.values()
        for value in record.values()
        if isinstance(value, bytes)
    )
    return arrays + blobs
