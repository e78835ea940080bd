"""Flower ClientApp: unpack a message, hand it to the method's trainer, pack the reply."""

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedadb_app import client_context as node
from fedadb_app import evaluation_messages, messages
from fedadb_app.aggregation import all_finite
from fedadb_app.audited import audited
from fedadb_app.data.clients import PartitionClaim, client_data, image_schema
from fedadb_app.evaluation import evaluate
from fedadb_app.local_training import LocalTask, choose_device
from fedadb_app.models.classifier import ModelSpec, model_facts
from fedadb_app.personalisation import personalised
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
    model = node.worker_model(config, method.heads).to(device)
    model.load_state_dict(global_model)
    client = node.identity(context, held)
    memory = node.client_state(context, config, client, instruction.ancestors)
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
    """Evaluate the received model on this client's held-out samples; personalise the last one."""
    shared, method, params = read_run_config(context.run_config)
    config = node.at_this_node(context, shared)
    held, device = node.configured_data(context, config), choose_device(config.device)
    client, data = node.identity(context, held), client_data(config, held, device)
    received, instruction = evaluation_messages.read_evaluate(message)
    model = node.worker_model(config, method.heads).to(device)
    model.load_state_dict(received)
    if method.take_up is not None:
        memory = node.client_state(context, config, client, instruction.ancestors)
        method.take_up(model, memory.read(instruction.server_round + 1)[1])
    heads = instruction.heads
    found = evaluate(model, data.held_out, config, heads[1:])
    node.log_found(config, instruction.server_round, found)
    validated = evaluate(model, data.validation, config) if data.validation else None
    told = None
    if heads and (after := personalised(model, config, client, data, heads)) is not None:
        told = found.correct_of(heads), after
        kept = (client, model.state_copy(), data.report)
        node.keep_personalised(context, config, params, *kept)
    sharing = node.sharing(context, config)
    return evaluation_messages.evaluate_reply(message, found, sharing, validated, told)
