"""A whole run over Flower's real SuperLink and grid, with a node that sends what it likes."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from damage import Part, fixed, put_together, taken_apart
from fake_grid import server_context
from flwr.app import Context, Error, Message, RecordDict
from helpers import messages_of, read_csv, read_json
from superlink import Parcel, SuperLink, superlink

import client_app
import server_app
from fedadb_app import guarded_grid
from strategies import claims, roster

CLIENTS, HOSTILE = 3, 2


def spoilt(kind: str, body: bytes) -> Callable[[Message], Parcel]:
    """The reply with another body in all its objects of one kind."""

    def spoil(reply: Message) -> Parcel:
        message = taken_apart(reply)
        for part in message.all():
            if part.kind == kind:
                part.body = fixed(body)
        return put_together(reply, message)

    return spoil


def multitude(reply: Message) -> Parcel:
    message = taken_apart(reply)
    message.parts += [Part("MetricRecord", fixed(bytes([i]))) for i in range(250)]
    return put_together(reply, message)


def endless_text(reply: Message) -> Parcel:
    return Parcel.of(_as(reply, Message(Error(1000, "no\n" * 10**6), reply_to=_asked(reply))))


def _as(one: Message, other: Message) -> Message:
    other.metadata.__dict__.update(one.metadata.__dict__)
    return other


def _asked(reply: Message) -> Message:
    """Some message that an error can be a reply to; its metadata are then those of `reply`."""
    return Message(RecordDict(), dst_node_id=reply.metadata.src_node_id, message_type="train")


SCRIPT = {
    ("query", 1): spoilt("ConfigRecord", b"\xff\xff"),
    ("train", 1): spoilt("MetricRecord", b"\xff\xff"),  # ended a run before
    ("train", 2): spoilt("Array", b"no JSON"),  # ended a run before
    ("train", 3): multitude,
    ("train", 4): endless_text,
    ("evaluate", 1): spoilt("RecordDict", b"[" * 50_000),
    ("evaluate", 2): spoilt("Message", b"\x00\xff"),
}
"""What the hostile node sends to its n-th message of a type; else it is honest."""


@dataclass
class SuperNodes:
    """What the nodes of a federation do, one after another, until they are told to stop."""

    link: SuperLink
    values: dict[str, object]
    done: threading.Event = field(default_factory=threading.Event)
    asked: dict[tuple[int, str], int] = field(default_factory=dict)

    def serve(self) -> None:
        contexts = [
            Context(
                run_id=self.link.run_id,
                node_id=node,
                node_config={"partition-id": i, "num-partitions": CLIENTS},
                state=RecordDict(),
                run_config=dict(self.values),
            )
            for i, node in enumerate(self.link.nodes)
        ]
        while not self.done.wait(0.02):
            self.link.beat()
            for client, context in enumerate(contexts):
                for message in self.link.waiting_for(context.node_id):
                    self._answer(client, context, message)

    def _answer(self, client: int, context: Context, message: Message) -> None:
        kind = message.metadata.message_type
        reply = client_app.app(message, context)
        reply.metadata.__dict__["_src_node_id"] = context.node_id
        count = self.asked[client, kind] = self.asked.get((client, kind), 0) + 1
        send = SCRIPT.get((kind, count)) if client == HOSTILE else None
        self.link.send((send or Parcel.of)(reply))


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(guarded_grid, "_POLL", 0.02)
    monkeypatch.setattr(claims, "PATIENCE", 0.5)
    monkeypatch.setattr(roster, "_PAUSE", 0.02)


@pytest.mark.slow
def test_no_reply_ends_the_run(values, impatient, caplog, tmp_path):
    values |= {"num-server-rounds": 5, "evaluate": "both", "round-timeout": 30.0}
    with superlink(CLIENTS) as link:
        nodes = SuperNodes(link, values)
        thread = threading.Thread(target=nodes.serve)
        thread.start()
        try:
            server_app.app(link.grid, server_context(values, link.run_id))
        finally:
            nodes.done.set()
            thread.join()
    run = tmp_path / "runs" / "run"
    assert read_json(run / "summary.json")["status"] == "completed"
    rows = read_csv(run / "rounds.csv")
    assert [row["failures"] for row in rows] == ["1", "1", "1", "1", "0"]
    assert [row["clients"] for row in rows] == ["2", "2", "2", "2", "3"]
    failed = [
        (row["round"], row["value"])
        for row in read_csv(run / "diagnostics.csv")
        if row["name"] == "evaluation_failures"
    ]
    assert failed == [("1", "1"), ("2", "1"), ("3", "0"), ("4", "0"), ("5", "0")]
    warned = messages_of(caplog.records, "WARNING")
    for start in (
        f"node {link.nodes[HOSTILE]} is left out: its reply cannot be read: DecodeError: ",
        "round 1: client 2 failed: its reply cannot be read: DecodeError: ",
        "round 2: client 2 failed: its reply cannot be read: JSONDecodeError: ",
        "round 3: client 2 failed: its reply was refused before it was unpacked",
        "round 4: client 2 failed: its reply was refused before it was unpacked",
        "round 1: client 2 failed: its reply cannot be read: RecursionError: ",
        "round 2: client 2 failed: its reply cannot be read: ",
    ):
        assert [w for w in warned if w.startswith(start)], start
