"""Which replies can not be used, whose they are, and what the others hold."""

import numpy as np
import pytest
import torch
from faults import UNUSABLE, edited, fails, first, superlink_error
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from helpers import identical
from message_cases import MODEL, asked, good_reply

from fedadb_app.data.clients import PartitionClaim, SampleCounts
from fedadb_app.messages import (
    identity_query,
    identity_reply,
    read_identity,
    read_train_reply,
    train_reply,
)
from fedadb_app.refusals import RefusalError, UnusableReplyError
from strategies.replies import Asked

# --- replies --------------------------------------------------------------------------------


def test_a_reply_comes_back_as_an_update():
    update = read_train_reply(good_reply(), 4, MODEL, 100)
    assert update.client == 4
    assert update.num_examples == 100
    assert update.metrics == {"train-loss": 0.25, "steps": 7.0}
    assert identical(update.arrays, MODEL)


def test_a_reply_holds_these_keys_and_no_others():
    content = good_reply().content
    assert set(content) == {"arrays", "metrics"}
    assert dict(content["metrics"]) == {"num-examples": 100, "train-loss": 0.25, "steps": 7}


def test_a_reply_goes_back_to_the_sender():
    message = asked(node=77)
    reply = train_reply(message, MODEL, 1, {"train-loss": 0.0})
    assert reply.metadata.src_node_id == 77
    assert reply.metadata.message_type == "train"


def test_a_client_that_claims_more_samples_than_it_holds_is_not_believed():
    reply = edited(metrics=lambda m: {**m, "num-examples": 101})(asked(), good_reply())[0]
    assert read_train_reply(reply, 0, MODEL, 101).num_examples == 101
    with pytest.raises(UnusableReplyError, match="num-examples=101, but this client holds 100"):
        read_train_reply(reply, 0, MODEL, 100)


def test_a_negative_running_variance_is_refused():
    model = {"features.1.running_var": torch.tensor([1.0, -5.0])}
    reply = train_reply(asked(), model, 100, {"train-loss": 1.0})
    with pytest.raises(UnusableReplyError, match="variance"):
        read_train_reply(reply, 0, model, 100)


@pytest.mark.parametrize("fault", [name for name in UNUSABLE if name != "silent"])
def test_an_unusable_reply_is_refused_with_its_reason(fault):
    spoil, reason = UNUSABLE[fault]
    with pytest.raises(UnusableReplyError, match=reason):
        read_train_reply(spoil(asked(), good_reply())[0], 0, MODEL, 100)


def test_a_single_bad_value_is_found():
    spoil = edited(first(lambda a: np.where(a == -2.0, np.nan, a).astype(a.dtype)))
    with pytest.raises(UnusableReplyError, match="not finite"):
        read_train_reply(spoil(asked(), good_reply())[0], 0, MODEL, 100)


def test_the_reasons_name_what_was_expected():
    spoil = edited(first(lambda a: a[:, :-1]))
    with pytest.raises(UnusableReplyError, match=r"features.0.weight.*\(1, 2\).*\(1, 3\)"):
        read_train_reply(spoil(asked(), good_reply())[0], 0, MODEL, 100)


def test_a_claim_of_gigantic_arrays_is_no_more_than_an_unusable_reply():
    """The header of an array may promise a terabyte that is not there."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000,), }\n"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header

    def bomb(content: RecordDict) -> RecordDict:
        array = Array("float32", (10**15,), "numpy.ndarray", data)
        return RecordDict({**content, "arrays": ArrayRecord({"features.0.weight": array})})

    with pytest.raises(UnusableReplyError):
        read_train_reply(edited(content=bomb)(asked(), good_reply())[0], 0, MODEL, 100)


# --- identity -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "claim", [PartitionClaim(0, 1), SampleCounts(1, 0), SampleCounts(90, 9, 5)]
)
def test_identity_travels(claim):
    query = identity_query(11)
    assert (query.metadata.dst_node_id, query.metadata.message_type) == (11, "query")
    assert read_identity(identity_reply(query, claim), type(claim)) == claim


def test_identity_of_a_node_with_its_own_data_is_two_counts():
    reply = identity_reply(identity_query(11), SampleCounts(90, 9))
    assert {key: dict(record) for key, record in reply.content.items()} == {
        "identity": {"num-examples": 90, "num-held-out": 9}
    }


def test_an_error_is_no_identity():
    query = identity_query(11)
    with pytest.raises(UnusableReplyError, match="CUDA out of memory"):
        read_identity(fails()(query, query)[0], SampleCounts)
    with pytest.raises(UnusableReplyError, match="error code 2"):
        read_identity(Message(Error(code=2), reply_to=query), SampleCounts)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"identity": {"partition-id": 1}},
        {"identity": {"num-partitions": 1}},
        {"identity": {"partition-id": "1", "num-partitions": 3}},
        {"identity": {"partition-id": 0.5, "num-partitions": 3}},
        {"identity": {"name": "clinic"}},
    ],
)
def test_half_an_identity_is_none(content):
    """Another app's client, or an older one, must not crash the server."""
    records = RecordDict({key: ConfigRecord(record) for key, record in content.items()})
    with pytest.raises(UnusableReplyError, match="identity"):
        read_identity(Message(records, reply_to=identity_query(11)), PartitionClaim)


# --- refusals -------------------------------------------------------------------------------


def test_a_file_that_changed_under_a_run_is_a_refusal():
    with pytest.raises(RefusalError, match="num-examples=100, but this client holds 99"):
        read_train_reply(good_reply(), 0, MODEL, 99)


# --- whose reply ----------------------------------------------------------------------------


def sent_to(*nodes: int) -> list[Message]:
    sent = [asked(node) for node in nodes]
    for message in sent:
        message.metadata.__dict__["_message_id"] = f"to {message.metadata.dst_node_id}"
    return sent


def test_a_reply_is_its_senders():
    sent = sent_to(5, 6)
    assert Asked(sent).node(train_reply(sent[1], MODEL, 1, {})) == 6


def test_the_superlink_replies_for_a_node_that_is_gone():
    sent = sent_to(5, 6)
    (reply,) = superlink_error(sent[0], sent[0])
    assert reply.metadata.src_node_id not in (5, 6)
    assert Asked(sent).node(reply) == 5


def test_a_strangers_reply_is_nobodys():
    (other,) = sent_to(9)
    assert Asked(sent_to(5, 6)).node(train_reply(other, MODEL, 1, {})) is None


def test_messages_that_were_never_pushed_have_no_id_to_match():
    never_pushed = asked(5)
    stranger = train_reply(asked(9), MODEL, 1, {})
    assert stranger.metadata.reply_to_message_id == never_pushed.metadata.message_id == ""
    assert Asked([never_pushed]).node(stranger) is None


def test_a_node_cannot_write_lines_into_the_servers_log():
    forged = "boom\n\x1b[2K\rINFO round 5/50: accuracy 99.99 %" + "x" * 10_000
    said = str(UnusableReplyError(forged[:60] + "y" * 10_000))
    assert len(said) <= 2000
    said = str(UnusableReplyError(forged[:60]))
    assert said.isprintable()
    assert "boom\\n\\x1b[2K\\rINFO" in said


def test_of_a_traceback_only_the_message_is_said():
    """What Flower's simulation sends for a client that raised, and a SuperNode's shorter form."""
    worker = (
        "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'ray::ClientAppActor.run()\n"
        '  File "client_app.py", line 9, in train\nflwr.clientapp.ClientAppException: \n'
        "Exception ClientAppException occurred. Message: CUDA out of memory\nmore of it'>"
    )
    for reason, expected in (
        (worker, "CUDA out of memory"),
        ("<class 'RuntimeError'>:<'first\nsecond'>", "second"),
        ("<class 'RuntimeError'>:<'only'>", "<class 'RuntimeError'>:<'only'>"),
    ):
        asked = identity_query(7)
        asked.metadata.__dict__["_message_id"] = "m"
        reply = Message(Error(2, reason), reply_to=asked)
        with pytest.raises(UnusableReplyError) as caught:
            read_identity(reply, PartitionClaim)
        assert str(caught.value) == expected
