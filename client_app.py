"""Flower ClientApp: unpack a message, hand it to the method's trainer, pack the reply."""

import os
import sys
from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedadb_app import messages
from fedadb_app.aggregation import all_finite
from fedadb_app.config import RunConfig
from fedadb_app.data import local_data
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import DataError
from fedadb_app.local_training import LocalTask, choose_device
from fedadb_app.memory import keep_freed_memory
from fedadb_app.models import ImageClassifier, ModelSpec, build_classifier
from strategies import METHODS, read_run_config
from strategies.local_privacy import local_privacy

app = ClientApp()
keep_freed_memory()

if Path(sys.argv[0]).stem == "flwr-simulation":
    # Ray's workers import this module by its name and look first in the folder in which this
    # process starts Ray: that of the user's first `flwr run`, with whatever client_app.py lies
    # there. Flower loads this module before it starts Ray, so move to the bundle.
    os.chdir(Path(__file__).parent)


@app.query()
def identify(message: Message, context: Context) -> Message:
    """Say which partition this node holds."""
    return messages.identity_reply(message, context)


@app.train(mods=[local_privacy])
def train(message: Message, context: Context) -> Message:
    """Train the received model on this client's samples."""
    config, method, params = read_run_config(context.run_config)
    claim = messages.partition_claim(context)
    if claim is None:
        raise DataError(
            "this SuperNode has no data: start it with "
            "--node-config 'partition-id=0 num-partitions=3' (its part of dataset="
            f'"{config.dataset}")'
        )
    device = choose_device(config.device)
    data = local_data(config, claim.partition_id, claim.num_partitions, device)
    global_model, instruction = messages.read_train(message)
    model = _worker_model(config).to(device)
    model.load_state_dict(global_model)
    memory = messages.client_state(context, config, claim.partition_id, instruction)
    state_round, state = memory.read(instruction.server_round)
    task = LocalTask(
        client=claim.partition_id,
        server_round=instruction.server_round,
        num_rounds=instruction.num_rounds,
        learning_rate=instruction.learning_rate,
        config=config,
        data=data,
        attachments=instruction.attachments,
        state=state,
    )
    metrics = method.trainer(model, task, params).train()
    if task.state and all_finite(task.state):  # a failed round must not spoil the client's memory
        memory.write(instruction.server_round, task.state)
    if config.privacy == "local":
        metrics = {}  # computed from the samples, and without noise
    recalled = state_round if task.state else None
    return messages.train_reply(message, model.state_dict(), len(data), metrics, recalled)


@lru_cache(maxsize=1)
def _worker_model(config: RunConfig) -> ImageClassifier:
    """Build the model once a process; every message loads its own weights into it."""
    dataset = open_dataset(config.dataset, config.data_dir)
    spec = ModelSpec.of(config, dataset)
    return build_classifier(spec, config.seed, METHODS[config.strategy].heads)
