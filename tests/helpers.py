"""A fake Flower grid around the real ClientApp, and a federation built on it, in one process."""

import contextlib
import csv
import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.superlink.grid import InMemoryGrid

import client_app
import server_app
from fedadb_app import messages
from fedadb_app.config import Settings
from fedadb_app.data.clients import image_schema, partition_of, server_dataset
from fedadb_app.models.classifier import ModelSpec, build_classifier
from fedadb_app.runs.reader import accuracy_summary
from fedadb_app.runs.writer import RoundRecord, RunFolder
from strategies.base import FederatedStrategy, ServerRun
from strategies.registry import read_run_config
from strategies.roster import Roster

REPOSITORY = Path(__file__).resolve().parents[1]
SUPERLINK = 1
"""The node id under which a SuperLink itself replies, e.g. for a node that is gone."""

Fault = Callable[[Message, Message], list[Message]]
"""(instruction, the ClientApp's reply) -> what the server receives instead."""


def node_id(partition: int) -> int:
    """A node id as Flower draws it: large, and in another order than the partition ids."""
    return 2**62 + (7919 * (partition + 1)) % 1009


def simulated_nodes(count: int) -> dict[int, dict[str, Any]]:
    """Node id -> node config, as Flower's simulation sets it."""
    return {node_id(i): {"partition-id": i, "num-partitions": count} for i in range(count)}


def own_data(
    path: Path,
    labels: Sequence[int],
    test: Sequence[int] = (),
    shape: tuple[int, ...] = (28, 28),
    seed: int = 0,
) -> dict[str, Any]:
    """Write a node's own data, bright where the class says, and return its node config."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for part, held in (("train", labels), ("test", test)):
        if len(held):
            images = rng.integers(0, 100, (len(held), *shape), np.uint8)
            for image, label in zip(images, held, strict=True):
                image[7 * (label % 4) : 7 * (label % 4) + 7] += 100
            arrays |= {f"{part}_images": images, f"{part}_labels": np.array(held)}
    np.savez(path, **arrays)
    return {"data-path": str(path)}


def federation_of_nodes(classes: int = 4, shape: str = "1x28x28") -> dict[str, Any]:
    """The run configuration where nobody but the nodes has data."""
    names = ",".join(f"class-{c}" for c in range(classes))
    return {"dataset": "nodes", "classes": names, "image-shape": shape, "evaluate": "clients"}


# --- what can go wrong with a reply ---------------------------------------------------------


def silent(asked: Message, reply: Message) -> list[Message]:
    return []


def fails(reason: str | None = "<class 'RuntimeError'>:<'CUDA out of memory'>") -> Fault:
    return lambda asked, reply: [Message(Error(code=2, reason=reason), reply_to=asked)]


def superlink_error(asked: Message, reply: Message) -> list[Message]:
    """What a SuperLink answers, in its own name, for a node whose heartbeat has stopped."""
    error = Message(Error(code=5, reason="Node Unavailable"), reply_to=asked)
    error.metadata.__dict__["_src_node_id"] = SUPERLINK
    return [error]


def twice(asked: Message, reply: Message) -> list[Message]:
    return [reply, reply]


def with_stranger(asked: Message, reply: Message) -> list[Message]:
    """The reply, and one that a node that was never asked sends."""
    other = Message(RecordDict(), dst_node_id=4242, message_type="train")
    other.metadata.__dict__["_message_id"] = "some other message"
    return [Message(reply.content, reply_to=other), reply]


def edited(
    arrays: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] | None = None,
    metrics: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    content: Callable[[RecordDict], RecordDict] | None = None,
) -> Fault:
    """The reply with other arrays, other metrics, or another content."""

    def fault(asked: Message, reply: Message) -> list[Message]:
        changed = RecordDict(dict(reply.content))
        if arrays is not None:
            before = {name: array.numpy() for name, array in reply.content["arrays"].items()}
            changed["arrays"] = ArrayRecord(
                {name: Array(np.array(a, order="C")) for name, a in arrays(before).items()}
            )
        if metrics is not None:
            changed["metrics"] = MetricRecord(metrics(dict(reply.content["metrics"])))
        if content is not None:
            changed = content(changed)
        return [Message(changed, reply_to=asked)]

    return fault


def first(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[dict], dict]:
    """Change the first array only."""

    def edit(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        name = next(iter(arrays))
        return {**arrays, name: change(arrays[name])}

    return edit


def without_first(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return dict(list(arrays.items())[1:])


def garbage(content: RecordDict) -> RecordDict:
    """Arrays whose bytes are no arrays."""
    broken = {
        name: Array(array.dtype, array.shape, array.stype, b"PK\x03\x04 not an array")
        for name, array in content["arrays"].items()
    }
    return RecordDict({**content, "arrays": ArrayRecord(broken)})


def without(key: str) -> Callable[[RecordDict], RecordDict]:
    return lambda content: RecordDict({k: v for k, v in content.items() if k != key})


UNUSABLE: Mapping[str, tuple[Fault, str]] = {
    "silent": (silent, "no reply within round-timeout"),
    "error": (fails(), "CUDA out of memory"),
    "error without a reason": (fails(None), "error code 2"),
    "node is gone": (superlink_error, "Node Unavailable"),
    "no arrays": (edited(content=without("arrays")), "no model"),
    "no metrics": (edited(content=without("metrics")), "no metrics"),
    "arrays are a config": (
        edited(content=lambda c: RecordDict({**without("arrays")(c), "arrays": ConfigRecord()})),
        "no model",
    ),
    "garbage": (edited(content=garbage), "cannot be read"),
    "NaN": (edited(first(lambda a: np.full_like(a, np.nan))), "not finite"),
    "infinity": (edited(first(lambda a: np.full_like(a, -np.inf))), "not finite"),
    "wrong shape": (edited(first(lambda a: a[:-1])), "shape"),
    "transposed": (edited(first(lambda a: a.reshape(a.shape[::-1]))), "shape"),
    "wrong type": (edited(first(lambda a: a.astype(np.float64))), "float64"),
    "complex": (edited(lambda a: {n: v.astype(complex) for n, v in a.items()}), "complex"),
    "text": (edited(first(lambda a: a.astype(str))), "cannot be read"),
    "missing tensor": (edited(without_first), "features.0.weight"),
    "extra tensor": (edited(lambda a: {**a, "backdoor": np.zeros(1, np.float32)}), "backdoor"),
    "no samples": (edited(metrics=lambda m: {**m, "num-examples": 0}), "num-examples=0"),
    "negative": (edited(metrics=lambda m: {**m, "num-examples": -5}), "num-examples=-5"),
    "half a sample": (edited(metrics=lambda m: {**m, "num-examples": 1.5}), "num-examples=1.5"),
    "a float": (edited(metrics=lambda m: {**m, "num-examples": 479.0}), "num-examples=479.0"),
    "a list": (edited(metrics=lambda m: {**m, "num-examples": [9]}), "num-examples"),
    "too many": (edited(metrics=lambda m: {**m, "num-examples": 10**12}), "num-examples=10000"),
    "no count": (edited(metrics=lambda m: {"train-loss": 1.0}), "num-examples"),
    "NaN loss": (edited(metrics=lambda m: {**m, "train-loss": float("nan")}), "not finite"),
    "a metric like a path": (edited(metrics=lambda m: {**m, "../x": 1.0}), "no name of a metric"),
    "infinite metric": (edited(metrics=lambda m: {**m, "x": float("inf")}), "not finite"),
}
"""Name -> a fault after which a reply can not be used, and a word of the reason to be logged."""


# --- the grid -------------------------------------------------------------------------------


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


def serve(
    values: Mapping[str, Any], clients: int = 2, run_id: int = 7, crash_in: int = 0
) -> FakeGrid:
    """Run the whole app; a crash comes when the round's clients have trained and kept their state.

    Each run has fresh nodes, so nothing in a node's memory outlives it.
    """

    def crash(replies: list[Message]) -> Iterable[Message]:
        raise KeyboardInterrupt

    grid = FakeGrid(values, simulated_nodes(clients), run_id=run_id)
    grid.before_train = lambda t: t == crash_in and setattr(grid, "arrange", crash)
    with contextlib.suppress(KeyboardInterrupt):
        server_app.app(grid, server_context(values, run_id))
    return grid


# --- a federation ---------------------------------------------------------------------------


@dataclass
class Federation:
    """A strategy, its clients and its folder; `run` is what Flower does."""

    grid: FakeGrid
    strategy: FederatedStrategy[Settings]
    folder: RunFolder

    def run(self) -> Any:
        config = self.strategy.run.config
        return self.strategy.start(
            self.grid,
            messages.to_arrays(self.strategy.global_model),
            num_rounds=config.num_server_rounds,
            timeout=config.round_timeout,
            evaluate_fn=self.strategy.evaluate_round,
        )

    @property
    def rows(self) -> list[dict[str, str]]:
        return read_csv(self.folder.path / "rounds.csv")

    def fault(self, partition: int, fault: Fault) -> None:
        self.grid.faults[node_id(partition)] = fault


def make_federation(
    values: Mapping[str, Any], clients: int = 3, nodes: dict[int, dict[str, Any]] | None = None
) -> Federation:
    """Build what server_app's `main` builds, and wait for the nodes."""
    config, method, params = read_run_config(values)
    folder = RunFolder.create(config, run_id=7)
    dataset, schema = server_dataset(config), image_schema(config)
    grid = FakeGrid(values, simulated_nodes(clients) if nodes is None else nodes)
    roster = Roster(config)
    roster.gather(grid)
    partition = None if config.own_data else partition_of(config, roster.num_clients)
    model = build_classifier(ModelSpec.of(config, schema), config.seed, method.heads)
    run = ServerRun(config, model, schema, dataset, partition, folder)
    strategy = method.strategy(run, roster, params)
    return Federation(grid, strategy, folder)


# --- results --------------------------------------------------------------------------------


def write_run(
    folder: Path,
    accuracies: Sequence[float],
    status: str = "completed",
    classes: Sequence[Sequence[float]] = ((100.0, 0.0),),
) -> None:
    """Write what a run leaves, with `accuracies` every round."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "rounds.csv").open("w") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(RoundRecord.header())
        for number, accuracy in enumerate(accuracies, start=1):
            record = RoundRecord(number, accuracy=accuracy, clients=2, failures=1)
            record.bytes_down, record.bytes_up = 3_000_000, 1_000_000
            record.seconds_train, record.seconds_anchors = 1.5, 0.5
            writer.writerow(record.row())
    rows = [classes[min(i, len(classes) - 1)] for i in range(len(accuracies))]
    lines = [",".join(["round", "a", "b"])]
    lines += [",".join([str(i + 1), *(f"{c:.2f}" for c in row)]) for i, row in enumerate(rows)]
    (folder / "class_accuracy.csv").write_text("\n".join(lines) + "\n")
    shown = [round(accuracy, 2) for accuracy in accuracies]
    summary = {"status": status, "rounds": len(shown), "seconds": 1.5, **accuracy_summary(shown)}
    (folder / "summary.json").write_text(json.dumps(summary))


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def identical(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two state dicts are equal bit by bit."""
    return one.keys() == other.keys() and all(
        one[k].dtype == other[k].dtype
        and one[k].shape == other[k].shape
        and one[k].numpy().tobytes() == other[k].numpy().tobytes()
        for k in one
    )


def messages_of(records: Sequence[Any], level: str) -> list[str]:
    """The logged texts of one level, by this app."""
    return [
        r.getMessage() for r in records if r.levelname == level and r.name.startswith("flwr.fedadb")
    ]
