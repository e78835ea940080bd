"""A node's side of Flower: which data it holds, what it refuses, and where it remembers.

All three are read from, or kept in, the `Context` that Flower hands to a ClientApp.
"""

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message

from fedadb_app import messages
from fedadb_app.client_state import NOTES, Ancestor, StateFolder, refuse_changed_data
from fedadb_app.config import RunConfig
from fedadb_app.data.batches import LocalData
from fedadb_app.data.clients import ClientData, PartitionClaim, client_data, image_schema
from fedadb_app.data.intake.report import IntakeReport
from fedadb_app.data.prepared import cache_folder
from fedadb_app.disclosure import Sharing
from fedadb_app.errors import ConfigError, DataError, FedADBError, StorageError
from fedadb_app.evaluation import Evaluation
from fedadb_app.flower_internals import ClientAppCallable
from fedadb_app.models.classifier import (
    HeadBuilder,
    ImageClassifier,
    ModelSpec,
    StateDict,
    build_classifier,
)
from fedadb_app.refusals import refusal
from fedadb_app.runs.model_file import ModelFile
from fedadb_app.runs.personal_model import personal_folder, write_personal_model
from fedadb_app.settings import Settings, validate
from fedadb_app.study import STUDY, read_study, refuse_beyond
from fedadb_app.wire_arrays import to_arrays, to_state_dict

logger = logging.getLogger("flwr.fedadb")

_DATA_PATH, _PARTITION_ID, _NUM_PARTITIONS = "data-path", "partition-id", "num-partitions"
_OWN_FILES = ("ignore", "intensity", "frames", "transparency", "patient-pattern")
"""Keys of the run configuration that a node may set for its own files."""

_SHARE_CLASSES = "share-class-metrics"

_STATE, _STATE_ROUND, _ROUND = "client-state", "state-round", "round"


def configured_data(context: Context, config: RunConfig) -> PartitionClaim | Path:
    """Read from a node's ``--node-config`` which data it holds (the simulation sets it itself).

    Raises
    ------
    DataError
        If it lacks what the run needs, or it is malformed.
    ConfigError
        If the node's study file does not allow what the run asks for.
    """
    node = context.node_config
    if STUDY in node:
        refuse_beyond(read_study(Path(str(node[STUDY])).expanduser()), config, node)
    if config.own_data:
        path = node.get(_DATA_PATH, "")
        if not isinstance(path, str) or not Path(path).expanduser().is_absolute():
            raise DataError(
                f'--node-config: {_DATA_PATH}="{path}" is not the absolute path of its own '
                f"images; start the SuperNode with --node-config '{_DATA_PATH}=\"/data/hospital\"'"
            )
        return Path(path).expanduser()
    if _PARTITION_ID not in node or _NUM_PARTITIONS not in node:
        raise DataError(
            f"this SuperNode has no data: start it with --node-config "
            f"'{_PARTITION_ID}=0 {_NUM_PARTITIONS}=3' (its part of dataset=\"{config.dataset}\"), "
            f"or give the run the classes and image-shape of the nodes' own data"
        )
    claim = (node[_PARTITION_ID], node[_NUM_PARTITIONS])
    if not all(type(value) is int for value in claim):
        raise DataError(
            f"--node-config: {_PARTITION_ID}={claim[0]} and {_NUM_PARTITIONS}={claim[1]} must be "
            f"whole numbers"
        )
    return PartitionClaim(int(claim[0]), int(claim[1]))


def identity(context: Context, held: PartitionClaim | Path) -> int:
    """Return who a client is: its part of a public data set, or Flower's id of its node."""
    return held.partition_id if isinstance(held, PartitionClaim) else context.node_id


def at_this_node(context: Context, config: RunConfig) -> RunConfig:
    """Return a run's configuration with what the node's ``--node-config`` says of its own files.

    Raises
    ------
    ConfigError
        If a value there is not allowed.
    """
    own = {key: context.node_config[key] for key in _OWN_FILES if key in context.node_config}
    return validate(RunConfig, {**config.model_dump(by_alias=True), **own}) if own else config


@lru_cache(maxsize=1)
def worker_model(config: RunConfig, heads: HeadBuilder) -> ImageClassifier:
    """Build the model once a process; every message loads its own weights into it."""
    return build_classifier(ModelSpec.of(config, image_schema(config)), config.seed, heads)


def training_data(
    context: Context,
    config: RunConfig,
    held: PartitionClaim | Path,
    device: torch.device,
    instruction: messages.Instruction,
) -> LocalData:
    """Return what a client trains on in a round: the images that its run was begun with.

    Raises
    ------
    DataError
        If they cannot be had, or a node's own have changed since.
    """
    data = client_data(config, held, device)
    if isinstance(held, Path):
        notes = cache_folder() / NOTES
        refuse_changed_data(notes, held, data.digest, context.run_id, instruction.ancestors)
    return data.train


def sharing(context: Context, config: RunConfig) -> Sharing:
    """Return what this node may tell of its images: per class where its own configuration lets it.

    Raises
    ------
    ConfigError
        If the value in its ``--node-config`` is neither true nor false.
    """
    value = context.node_config.get(_SHARE_CLASSES, False)
    if not isinstance(value, bool):
        raise ConfigError(f"--node-config: {_SHARE_CLASSES}={value} must be true or false")
    return Sharing(classes=value, public=not config.own_data)


def log_own_data(config: RunConfig, data: ClientData) -> None:
    """Write into the node's log how its own images came in, and how they are divided.

    File names may name patients, and class counts are its own affair: nothing of it leaves here.
    """
    for line in data.report.lines() if data.report is not None else []:
        logger.info("intake, on this node: %s", line)
    counts = dict(zip(config.class_names, data.train.class_counts.tolist(), strict=True))
    kept = f"; for validation: {len(data.validation)}" if data.validation else ""
    logger.info(
        "training samples, on this node: %s; held out: %d%s", counts, len(data.held_out), kept
    )


def log_found(config: RunConfig, server_round: int, found: Evaluation) -> None:
    """Write into the node's log what a model finds per class, which is its own affair."""
    classes = zip(image_schema(config).class_names, found.correct, found.total, strict=True)
    per_class = ", ".join(f"{name} {right} of {all_}" for name, right, all_ in classes if all_)
    logger.info("round %d, correct on this node: %s", server_round, per_class)


def keep_personalised(
    context: Context,
    config: RunConfig,
    params: Settings,
    client: int,
    state: StateDict,
    report: IntakeReport | None,
) -> None:
    """Keep a client's own model on this machine, and say where; a full disk costs the model alone.

    Parameters
    ----------
    context : Context
        For the run's id.
    config, params : RunConfig, Settings
        The shared values and the method's own.
    client : int
        Its identity.
    state : StateDict
        The model.
    report : IntakeReport or None
        How its own images came in.
    """
    folder = personal_folder(config, context.run_id, client)
    if folder is None:
        return
    inputs = ModelFile.of(config, image_schema(config), report)
    try:
        write_personal_model(folder, config, params.model_dump(by_alias=True), inputs, state)
    except StorageError as error:
        logger.error("the personalised model is lost: %s", error)
        return
    logger.info("the personalised model of this node: %s", folder)


def or_refuse(answer: Callable[..., Message]) -> Callable[..., Message]:
    """Turn an error that someone at the node must mend into a sentence, here and at the server.

    For what answers a message in a context: the ClientApp's handlers, and mods around them.
    """

    @wraps(answer)
    def guarded(message: Message, context: Context, *call_next: ClientAppCallable) -> Message:
        try:
            return answer(message, context, *call_next)
        except FedADBError as error:
            logger.error("this node cannot take part: %s", error)
            # The name of a hospital's file may name a patient, and its folder is a label.
            secret = isinstance(error, DataError) and _DATA_PATH in context.node_config
            reason = "its data cannot be used; its own log says why" if secret else str(error)
            return refusal(message, reason)

    return guarded


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
    context: Context, config: RunConfig, client: int, ancestors: Sequence[Ancestor]
) -> ContextState | StateFolder:
    """Return where a client keeps its state between rounds; `ancestors` as in `StateFolder`."""
    if not config.client_state_dir:
        return ContextState(context)
    return StateFolder(
        config.client_state_dir,
        client,
        context.run_id,
        ancestors,
        config.checkpoint_every,
    )
