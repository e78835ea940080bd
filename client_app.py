"""Flower ClientApp: unpack a message, hand it to the method's trainer, pack the reply."""

from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedadb_app import client_context as node
from fedadb_app import messages
from fedadb_app.aggregation import all_finite
from fedadb_app.audited import audited
from fedadb_app.config import RunConfig
from fedadb_app.data.clients import PartitionClaim, client_data, image_schema
from fedadb_app.evaluation import evaluate
from fedadb_app.local_training import LocalTask, choose_device
from fedadb_app.models.classifier import ImageClassifier, ModelSpec, build_classifier, model_facts
from fedadb_app.process import keep_freed_memory, prepare_simulation, release_freed_memory
from strategies.local_privacy import local_privacy
from strategies.registry import STRATEGIES, read_run_config

app = ClientApp(mods=[audited])
keep_freed_memory()
prepare_simulation(Path(__file__).parent)


@app.query()
@node.or_refuse
def identify(message: Message, context: Context) -> Message:
    """Say which data this node holds, once the net can be built and they are found usable."""
    config = node.at_this_node(context, read_run_config(context.run_config)[0])
    held = node.configured_data(context, config)
    model_facts(ModelSpec.of(config, image_schema(config)), STRATEGIES[config.strategy].heads)
    if isinstance(held, PartitionClaim):
        return messages.identity_reply(message, held)
    data = client_data(config, held, choose_device(config.device))
    node.log_own_data(config, data)
    return messages.identity_reply(message, data.counts)


@app.train(mods=[local_privacy])
@node.or_refuse
def train(message: Message, context: Context) -> Message:
    """Train the received model on this client's samples."""
    shared, method, params = read_run_config(context.run_config)
    config = node.at_this_node(context, shared)
    held, device = node.configured_data(context, config), choose_device(config.device)
    global_model, instruction = messages.read_train(message)
    data = node.training_data(context, config, held, device, instruction)
    model = _worker_model(config).to(device)
    model.load_state_dict(global_model)
    client = held.partition_id if isinstance(held, PartitionClaim) else context.node_id
    memory = node.client_state(context, config, client, instruction)
    state_round, state = memory.read(instruction.server_round)
    task = LocalTask(
        client=client,
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
    release_freed_memory(instruction.server_round)
    recalled = state_round if task.state else None
    return messages.train_reply(message, model.state_dict(), len(data), metrics, recalled)


@app.evaluate()
@node.or_refuse
def evaluate_model(message: Message, context: Context) -> Message:
    """Evaluate the received model on this client's held-out samples, and on those it keeps."""
    config = node.at_this_node(context, read_run_config(context.run_config)[0])
    device = choose_device(config.device)
    data = client_data(config, node.configured_data(context, config), device)
    server_round, received = messages.read_evaluate(message)
    model = _worker_model(config).to(device)
    model.load_state_dict(received)
    found = evaluate(model, data.held_out, config)
    node.log_found(config, server_round, found)
    validated = evaluate(model, data.validation, config) if data.validation else None
    return messages.evaluate_reply(message, found, node.sharing(context, config), validated)


@lru_cache(maxsize=1)
def _worker_model(config: RunConfig) -> ImageClassifier:
    """Build the model once a process; every message loads its own weights into it."""
    spec = ModelSpec.of(config, image_schema(config))
    return build_classifier(spec, config.seed, STRATEGIES[config.strategy].heads)
