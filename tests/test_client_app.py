"""The client app, called as Flower calls it, with real messages."""

import warnings

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from helpers import Federation, identical

import client_app
from fedadb_app import messages
from fedadb_app.data.clients import PartitionClaim
from fedadb_app.data.sources import open_dataset
from fedadb_app.models.classifier import ModelSpec, build_classifier
from fedadb_app.refusals import RefusalError
from fedadb_app.wire_arrays import to_arrays, to_state_dict
from strategies.registry import METHODS

# Of the methods whose clients keep something between rounds.
OWN_SCALARS = {
    name: {"state-round"} for name in ("feddyn", "scaffold", "moon", "fedgmt", "fedgloss")
}
"""Method -> names of its own scalars in a reply. Before you add one: does it tell of labels?"""


def context(values, node_config) -> Context:
    return Context(
        run_id=7,
        node_id=11,
        node_config=node_config,
        state=RecordDict(),
        run_config={**values, "dataset": "digits"},
    )


def train_message(strategy: str = "fedavg", attachments=None) -> Message:
    dataset = open_dataset("digits", "")
    spec = ModelSpec("auto", "batch", dataset.image_shape, dataset.num_classes)
    model = build_classifier(spec, 0, METHODS[strategy].heads)
    instruction = messages.Instruction(1, 2, 0.01, attachments or {})
    arrays = to_arrays(model.state_dict())
    return messages.train_message(messages.train_content(arrays, instruction), 11)


def identify(values, node_config) -> Message:
    return client_app.app(messages.identity_query(11), context(values, node_config))


def refused(reply: Message) -> str:
    """The sentence with which a node refuses."""
    with pytest.raises(RefusalError) as caught:
        messages.read_identity(reply, PartitionClaim)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_identifies_itself_by_its_partition(values):
    reply = identify(values, {"partition-id": 2, "num-partitions": 5})
    assert messages.read_identity(reply, PartitionClaim) == PartitionClaim(2, 5)


def test_identity_tells_nothing_but_the_partition(values):
    config = {"partition-id": 0, "num-partitions": 3, "data-dir": "/patients"}
    reply = identify(values, config)
    assert {key: dict(record) for key, record in reply.content.items()} == {
        "identity": {"partition-id": 0, "num-partitions": 3}
    }


@pytest.mark.parametrize("strategy", sorted(METHODS))
def test_a_reply_holds_the_model_a_count_and_a_loss_only(federation, strategy):
    """Alpha 0.1 gives every client another mix of classes; nothing may tell which."""
    built: Federation = federation(
        strategy=strategy, partition="dirichlet", alpha=0.1, **{"num-server-rounds": 1}
    )
    built.run()
    replies = [m for m in built.grid.received if m.metadata.message_type == "train"]
    assert len(replies) == 3
    own = OWN_SCALARS.get(strategy, set())
    for reply in replies:
        assert set(reply.content) == {"arrays", "metrics"}
        assert set(reply.content["arrays"]) == set(built.strategy.global_model)
        assert set(reply.content["metrics"]) == {"num-examples", "train-loss"} | own


def test_the_count_is_the_number_of_the_clients_samples(federation):
    built: Federation = federation(clients=4, **{"num-server-rounds": 1})
    built.run()
    counts = [
        m.content["metrics"]["num-examples"]
        for m in built.grid.received
        if m.metadata.message_type == "train"
    ]
    assert sum(counts) == 400
    assert max(counts) - min(counts) <= 1  # i.i.d. parts are equal


def test_training_changes_the_model_and_leaves_the_message_alone(values):
    message = train_message()
    before, _ = messages.read_train(message)
    node = {"partition-id": 0, "num-partitions": 3}
    reply = client_app.app(message, context(values, node))
    after, _ = messages.read_train(message)
    assert identical(before, after)
    update = messages.read_train_reply(reply, 0, before, reply.content["metrics"]["num-examples"])
    assert all(not torch.equal(update.arrays[name], before[name]) for name in before)


def test_training_is_a_function_of_its_message(values):
    """Another client's training in between, in the same process, must leave no trace."""
    clients = [{"partition-id": i, "num-partitions": 3} for i in range(2)]
    replies = [
        client_app.app(train_message(), context(values, clients[i])).content["arrays"]
        for i in (0, 1, 0)
    ]
    one, other, again = (to_state_dict(r) for r in replies)
    assert identical(one, again)
    assert not identical(one, other)


def test_no_warning_about_the_arrays(values):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client_app.app(train_message(), context(values, {"partition-id": 0, "num-partitions": 3}))


@pytest.mark.parametrize("node_config", [{}, {"partition-id": 0}, {"num-partitions": 3}])
def test_without_a_partition_the_error_says_what_to_type(values, node_config):
    for reply in (
        identify(values, node_config),
        client_app.app(train_message(), context(values, node_config)),
    ):
        assert "--node-config 'partition-id=0 num-partitions=3'" in refused(reply)


def test_checks_the_run_configuration_itself(values):
    node = {"partition-id": 0, "num-partitions": 3}
    reply = client_app.app(train_message(), context({**values, "learning-rate": -1.0}, node))
    assert "learning-rate=-1.0 is not allowed" in refused(reply)


def test_more_clients_than_the_data_can_feed(values):
    node = {"partition-id": 0, "num-partitions": 1000}
    assert "1000 clients" in refused(client_app.app(train_message(), context(values, node)))
