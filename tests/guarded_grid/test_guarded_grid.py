"""Replies through Flower's real SuperLink and HTTP grid: none raises, each is its sender's."""

import tracemalloc

import httpx
import pytest
from damage import DAMAGES, Part, fixed, put_together, taken_apart
from flwr.app import Error, Message
from google.protobuf.message import DecodeError
from grid_cases import HONEST, HOSTILE, MODEL, MODEL_BYTES, Asked, by_sender, pulled, read
from superlink import Parcel

from fedadb_app import guarded_grid
from fedadb_app.errors import ConfigError
from fedadb_app.guarded_grid import MOST_STRUCTURE, Allowance
from fedadb_app.messages import train_reply as pack


@pytest.fixture
def asked(link) -> Asked:
    return Asked(link)


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


def test_a_message_that_was_not_taken_is_not_waited_for(grid, monkeypatch):
    monkeypatch.setattr(grid, "push_messages", lambda messages: [None])
    assert list(grid.send_and_receive([], timeout=None)) == []


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
