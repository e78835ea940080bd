"""Replies through Flower's real SuperLink and HTTP grid: none raises, each is its sender's."""

import logging
import tracemalloc
from collections.abc import Sequence

import httpx
import numpy as np
import pytest
import torch
from damage import DAMAGES, Part, damaged, fixed, put_together, taken_apart
from flwr.app import Error, Message
from google.protobuf.message import DecodeError
from helpers import identical
from superlink import Parcel, SuperLink, superlink

from fedadb_app import guarded_grid
from fedadb_app.errors import ConfigError
from fedadb_app.guarded_grid import MOST_STRUCTURE, Allowance, GuardedGrid
from fedadb_app.messages import Instruction, read_train_reply, train_content, train_message
from fedadb_app.messages import train_reply as pack
from fedadb_app.models.classifier import StateDict
from fedadb_app.refusals import UnusableReplyError, last_resort
from fedadb_app.wire_arrays import to_arrays

MODEL: StateDict = {"weight": torch.arange(1200.0).view(30, 40), "bias": torch.ones(40)}
MODEL_BYTES = 4 * 1240
HOSTILE, HONEST = 0, 1  # positions among the nodes


@pytest.fixture(scope="module")
def link():
    level = logging.getLogger("flwr").level
    logging.getLogger("flwr").setLevel(logging.WARNING)  # a line per object otherwise
    with superlink(num_nodes=2) as link:
        yield link
    logging.getLogger("flwr").setLevel(level)


@pytest.fixture
def grid(link) -> GuardedGrid:
    link.beat()
    return GuardedGrid(link.grid, Allowance.of(MODEL, 0))


class Asked:
    """A round's two messages, and the honest answers to them."""

    def __init__(self, link: SuperLink) -> None:
        content = train_content(to_arrays(MODEL), Instruction(1, 1, 0.1, {}))
        sent = [train_message(content, node) for node in link.nodes]
        self.ids = list(link.grid.push_messages(sent))
        self.replies = [
            self.by(node, pack(m, MODEL, 5, {"train-loss": 1.0}))
            for node, m in zip(link.nodes, sent, strict=True)
        ]
        self.sent = sent

    @staticmethod
    def by(node: int, reply: Message) -> Message:
        reply.metadata.__dict__["_src_node_id"] = node
        return reply


@pytest.fixture
def asked(link) -> Asked:
    return Asked(link)


def read(message: Message) -> str:
    """Why a reply cannot be used; nothing if it can."""
    try:
        with last_resort():
            update = read_train_reply(message, 0, MODEL, 5)
    except UnusableReplyError as error:
        return str(error)
    assert update.arrays.keys() == MODEL.keys()
    return ""


def by_sender(messages: Sequence[Message]) -> dict[int, Message]:
    return {message.metadata.src_node_id: message for message in messages}


def pulled(link: SuperLink, grid: GuardedGrid, asked: Asked, parcel: Parcel) -> str:
    """What becomes of a hostile reply beside an honest one, which must arrive as it was sent."""
    link.send(parcel)
    link.send(Parcel.of(asked.replies[HONEST]))
    found = by_sender(list(grid.pull_messages(asked.ids)))
    honest = read_train_reply(found[link.nodes[HONEST]], 1, MODEL, 5)
    assert identical(honest.arrays, MODEL)
    assert found.keys() <= set(link.nodes)
    if link.nodes[HOSTILE] not in found:
        return "no reply"
    return read(found[link.nodes[HOSTILE]])


def part_of(message: Part, kind: str) -> Part:
    return next(part for part in message.all() if part.kind == kind)


# --- honest replies -------------------------------------------------------------------------


def test_a_round_trip(link, grid, asked):
    for reply in asked.replies:
        link.send(Parcel.of(reply))
    found = list(grid.pull_messages(asked.ids))
    assert {m.metadata.reply_to_message_id for m in found} == set(asked.ids)
    assert [read(m) for m in found] == ["", ""]


def test_what_a_nodes_error_says_arrives(link, grid, asked):
    refused = Message(Error(1000, "no data"), reply_to=asked.sent[HOSTILE])
    parcel = Parcel.of(asked.by(link.nodes[HOSTILE], refused))
    assert pulled(link, grid, asked, parcel) == "no data"


# --- what ended a run -----------------------------------------------------------------------


def no_protobuf(reply: Message) -> Parcel:
    message = taken_apart(reply)
    part_of(message, "MetricRecord").body = fixed(b"\xff\xff\xff")
    return put_together(reply, message)


def no_array(reply: Message) -> Parcel:
    message = taken_apart(reply)
    part_of(message, "Array").body = fixed(b"no JSON")
    return put_together(reply, message)


@pytest.mark.parametrize(
    ("damage", "error", "named"),
    [
        (no_protobuf, DecodeError, "DecodeError: Error parsing message"),
        (no_array, ValueError, "JSONDecodeError: Expecting value"),
    ],
)
def test_what_flower_cannot_inflate_is_a_failure_of_its_sender(
    link, grid, asked, damage, error, named
):
    said = pulled(link, grid, asked, damage(asked.replies[HOSTILE]))
    assert said.startswith(f"its reply cannot be read: {named}")
    again = Asked(link)
    link.send(damage(again.replies[HOSTILE]))
    with pytest.raises(error):  # the reason for this module: Flower's own grid ends the run
        link.grid.pull_messages(again.ids)


def test_nobody_can_answer_for_another_node(link, grid, asked):
    """The content says that the reply is the other node's; the SuperLink knows whose it is."""
    lie = pack(asked.sent[HONEST], {n: t * 9 for n, t in MODEL.items()}, 5, {})
    asked.by(link.nodes[HONEST], lie)
    parcel = put_together(asked.replies[HOSTILE], taken_apart(lie))
    assert pulled(link, grid, asked, parcel) == ""  # a bad model, but under its sender's name


# --- sizes ----------------------------------------------------------------------------------

TOO_LARGE = "its reply was refused before it was unpacked"


def test_a_reply_may_have_four_times_the_models_bytes_and_no_more(link, grid, asked):
    large = {n: t.repeat(80, 1) for n, t in MODEL.items()}  # 80 times the model
    reply = asked.by(link.nodes[HOSTILE], pack(asked.sent[HOSTILE], large, 5, {}))
    allowance = grid._allowance
    assert allowance.num_bytes == 4 * MODEL_BYTES + MOST_STRUCTURE
    grid._allowance = Allowance(4 * MODEL_BYTES, allowance.num_objects)
    fetched = []
    fetch = guarded_grid.flower_internals.fetch_object
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            guarded_grid.flower_internals,
            "fetch_object",
            lambda *args: fetched.append(fetch(*args)) or fetched[-1],
        )
        said = pulled(link, grid, asked, Parcel.of(reply))
    assert said.startswith(TOO_LARGE)
    assert max(len(content) for content in fetched) <= 4 * MODEL_BYTES  # the large one never came


def test_an_array_that_repeats_a_chunk_is_measured_before_it_is_made(link, grid, asked):
    message = taken_apart(asked.replies[HOSTILE])
    DAMAGES["repeated_chunks"](message, list(message.all()), _Always(10**5))
    tracemalloc.start()
    said = pulled(link, grid, asked, put_together(asked.replies[HOSTILE], message))
    assert said.startswith(TOO_LARGE)
    assert tracemalloc.get_traced_memory()[1] < 50 << 20  # unpacked it has 480 MB
    tracemalloc.stop()


class _Always:
    def __init__(self, times: int) -> None:
        self._exponent = len(str(times)) - 1

    def integers(self, *bounds: int) -> int:
        return self._exponent


def test_a_multitude_of_objects_is_refused_before_they_are_fetched(link, grid, asked):
    message = taken_apart(asked.replies[HOSTILE])
    content = part_of(message, "RecordDict")
    content.parts += [Part("MetricRecord", fixed(bytes([i]))) for i in range(200)]
    said = pulled(link, grid, asked, put_together(asked.replies[HOSTILE], message))
    assert said.startswith(TOO_LARGE)


def test_a_text_without_end_is_refused(link, grid, asked):
    long = Message(Error(1000, "x" * (MOST_STRUCTURE + 1)), reply_to=asked.sent[HOSTILE])
    parcel = Parcel.of(asked.by(link.nodes[HOSTILE], long))
    assert pulled(link, grid, asked, parcel).startswith(TOO_LARGE)


@pytest.mark.parametrize("allowed", [1, MODEL_BYTES])
def test_a_limit_below_the_model_is_refused(allowed):
    with pytest.raises(ConfigError, match=f"max-reply-bytes={allowed} is not allowed: the model"):
        Allowance.of(MODEL, allowed)


def test_a_limit_counts_as_it_is_set():
    assert Allowance.of(MODEL, 10**8).num_bytes == 10**8


# --- uploads and the SuperLink --------------------------------------------------------------


def test_an_upload_that_has_not_ended_keeps_nobody_waiting(link, grid, asked):
    slow = Parcel.of(asked.replies[HOSTILE])
    last = slow.envelope.metadata.message_id
    link.send(Parcel.of(asked.replies[HONEST]))
    link.send(slow, withheld=[last])
    assert by_sender(list(grid.pull_messages(asked.ids))).keys() == {link.nodes[HONEST]}
    assert list(grid.pull_messages(asked.ids[:1])) == []
    link.finish(slow, [last])
    assert by_sender(list(grid.pull_messages(asked.ids[:1]))).keys() == {link.nodes[HOSTILE]}


def test_a_round_ends_in_time_without_an_upload_that_never_ends(link, grid, monkeypatch):
    monkeypatch.setattr(guarded_grid, "_POLL", 0.01)
    asked = Asked(link)
    monkeypatch.setattr(grid, "push_messages", lambda messages: asked.ids)
    slow = Parcel.of(asked.replies[HOSTILE])
    link.send(slow, withheld=[slow.envelope.metadata.message_id])
    link.send(Parcel.of(asked.replies[HONEST]))
    found = list(grid.send_and_receive([], timeout=1.0))
    assert by_sender(found).keys() == {link.nodes[HONEST]}
    assert grid._incoming == []


def failing(status: int):
    request = httpx.Request("POST", "http://superlink")
    response = httpx.Response(status, request=request)

    def fail(*args: object) -> None:
        raise httpx.HTTPStatusError("failed", request=request, response=response)

    return fail


@pytest.mark.parametrize("step", ["arrived", "fetch_object", "confirm"])
def test_a_superlink_that_fails_is_asked_again(link, grid, asked, monkeypatch, step):
    """As one does whose database is locked."""
    link.send(Parcel.of(asked.replies[HONEST]))
    with monkeypatch.context() as patch:
        patch.setattr(guarded_grid.flower_internals, step, failing(500))
        first = list(grid.pull_messages(asked.ids[1:]))
    rest = [] if first else grid.pull_messages(asked.ids[1:])
    assert [read(m) for m in [*first, *rest]] == [""]


@pytest.mark.parametrize("step", ["arrived", "fetch_object", "confirm"])
def test_a_superlink_that_ended_the_run_ends_it(link, grid, asked, monkeypatch, step):
    link.send(Parcel.of(asked.replies[HONEST]))
    monkeypatch.setattr(guarded_grid.flower_internals, step, failing(401))
    with pytest.raises(httpx.HTTPStatusError):
        list(grid.pull_messages(asked.ids))


def test_a_list_of_replies_that_cannot_be_read_is_said(link, grid, asked, monkeypatch, caplog):
    def fail(*args: object) -> None:
        raise ValueError("Invalid protobuf response payload")

    monkeypatch.setattr(guarded_grid.flower_internals, "arrived", fail)
    assert list(grid.pull_messages(asked.ids)) == []
    assert "list of replies was unreadable (ValueError: Invalid protobuf" in caplog.text


# --- damage of every kind -------------------------------------------------------------------


def survive(link: SuperLink, grid: GuardedGrid, seeds: range) -> dict[str, int]:
    """Send one damaged reply per seed beside an honest one; count what became of them."""
    kinds, outcomes = list(DAMAGES), dict.fromkeys(("used", "refused", "no reply"), 0)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        names = [kinds[seed % len(kinds)], *rng.choice(kinds, rng.integers(0, 3))]
        link.beat()
        asked = Asked(link)
        said = pulled(link, grid, asked, damaged(asked.replies[HOSTILE], names, rng))
        outcomes[{"": "used", "no reply": "no reply"}.get(said, "refused")] += 1
        assert len(said) <= 2000
        assert said.isprintable()
    return outcomes


def test_no_damage_does_more_than_cost_its_reply(link, grid):
    outcomes = survive(link, grid, range(24))
    assert outcomes["refused"] >= 12


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_thousand_damaged_replies_cost_their_replies(link, grid):
    """Memory stays within three times what a reply may have, and 32 MB for Python's objects."""
    tracemalloc.start()
    outcomes = survive(link, grid, range(1000, 3000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert outcomes["refused"] >= 1200
    assert peak < 3 * grid._allowance.num_bytes + (32 << 20)
