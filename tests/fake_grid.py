"""A fake Flower grid around the real ClientApp, in one process."""

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from faults import SUPERLINK, Fault, fails, superlink_error
from flwr.app import Context, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.superlink.grid import InMemoryGrid

import client_app


def node_id(partition: int) -> int:
    """A node id as Flower draws it: large, and in another order than the partition ids."""
    return 2**62 + (7919 * (partition + 1)) % 1009


def simulated_nodes(count: int) -> dict[int, dict[str, Any]]:
    """Node id -> node config, as Flower's simulation sets it."""
    return {node_id(i): {"partition-id": i, "num-partitions": count} for i in range(count)}


@dataclass
class FakeGrid(Grid):
    """Hands each message to the real ClientApp, at once, and collects the replies."""

    run_config: Mapping[str, Any]
    nodes: dict[int, dict[str, Any]]
    faults: dict[int, Fault] = field(default_factory=dict)  # by node id; train messages only
    identity_faults: dict[int, Fault] = field(default_factory=dict)
    evaluate_faults: dict[int, Fault] = field(default_factory=dict)
    arrange: Callable[[list[Message]], Iterable[Message]] = list
    before_look: Callable[[], None] | None = None  # called before each look at who is connected
    before_train: Callable[[int], None] | None = None  # called with the round
    sent: list[Message] = field(default_factory=list)
    received: list[Message] = field(default_factory=list)
    waiting: list[Message] = field(default_factory=list)  # replies that nobody has pulled
    timeouts: list[float | None] = field(default_factory=list)
    contexts: dict[int, Context] = field(default_factory=dict)
    run_id: int = 7

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError("deprecated in Flower 1.42")

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Take messages in; each is answered at once."""
        asked = list(messages)
        for message in asked:
            message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
        self.sent += asked
        for message in asked:
            self.waiting += self._answer(message)
        return [message.metadata.message_id for message in asked]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Hand out, once, the replies that are there."""
        wanted = set(message_ids)
        there = [m for m in self.waiting if m.metadata.reply_to_message_id in wanted]
        self.waiting = [m for m in self.waiting if m not in there]
        self.received += there
        return self.arrange(there)

    def get_node_ids(self) -> Iterable[int]:
        if self.before_look is not None:
            self.before_look()
        return list(self.nodes)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        asked = list(messages)
        self.timeouts.append(timeout)
        train = [m for m in asked if m.metadata.message_type == "train"]
        if train and self.before_train is not None:
            self.before_train(train[0].content["config"]["round"])
        before = self.waiting
        self.waiting = []
        self.push_messages(asked)
        replies, self.waiting = self.waiting, before
        self.received += replies
        return self.arrange(replies)

    def trained(self) -> list[Message]:
        """The train messages that went out."""
        return [m for m in self.sent if m.metadata.message_type == "train"]

    def _answer(self, message: Message) -> list[Message]:
        node = message.metadata.dst_node_id
        faults = {
            "train": self.faults,
            "query": self.identity_faults,
            "evaluate": self.evaluate_faults,
        }[message.metadata.message_type]
        if node not in self.nodes:
            return superlink_error(message, message)
        try:
            reply = client_app.app(message, self.context(node))
        except Exception as error:  # as Flower's simulation does it
            reply = fails(f"{type(error)}:<'{error}'>")(message, message)[0]
        return faults[node](message, reply) if node in faults else [reply]

    def context(self, node: int) -> Context:
        if node not in self.contexts:
            self.contexts[node] = Context(
                run_id=self.run_id,
                node_id=node,
                node_config=self.nodes[node],
                state=RecordDict(),
                run_config=dict(self.run_config),
            )
        return self.contexts[node]


@dataclass
class SimulatedGrid(FakeGrid, InMemoryGrid):
    """A `FakeGrid` that passes for a simulation's: it knows in which order nodes registered."""

    registered: list[int] = field(default_factory=list)

    def get_nodes(self) -> list[NodeInfo]:
        start = datetime(2026, 1, 1, tzinfo=UTC)
        nodes = [
            NodeInfo(node_id=node, registered_at=(start + timedelta(microseconds=i)).isoformat())
            for i, node in enumerate(self.registered)
        ]
        return nodes[::-1]  # Flower's come from a set


def server_context(run_config: Mapping[str, Any], run_id: int = 7) -> Context:
    """What Flower hands to a ServerApp."""
    return Context(
        run_id=run_id,
        node_id=SUPERLINK,
        node_config={},
        state=RecordDict(),
        run_config=dict(run_config),
    )
