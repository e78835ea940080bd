"""The wire: what a message holds, what comes back out, and which replies can not be used."""

import math
import warnings

import numpy as np
import pytest
import torch
from faults import UNUSABLE, edited, fails, first, superlink_error
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from helpers import identical
from safetensors.torch import load

from fedadb_app.client_state import Ancestor
from fedadb_app.data.clients import PartitionClaim, SampleCounts
from fedadb_app.evaluation import Evaluation
from fedadb_app.local_training import Attachment
from fedadb_app.messages import (
    Asked,
    ClientEvaluation,
    Instruction,
    RefusalError,
    UnusableReplyError,
    content_bytes,
    evaluate_content,
    evaluate_message,
    evaluate_reply,
    identity_query,
    identity_reply,
    read_evaluate,
    read_evaluate_reply,
    read_identity,
    read_train,
    read_train_reply,
    to_arrays,
    to_state_dict,
    train_content,
    train_message,
    train_reply,
)

MODEL = {
    "features.0.weight": torch.tensor([[1.5, -2.0, 3.25]]),
    "features.0.bias": torch.tensor([1e-30, 1e30]),
    "norm.num_batches_tracked": torch.tensor(12),
    "half": torch.tensor([0.5], dtype=torch.float16),
    "double": torch.tensor([math.pi], dtype=torch.float64),
    "nothing": torch.zeros(0, 3),
}


def instruction(**attachments: Attachment) -> Instruction:
    return Instruction(3, 20, 0.0098, attachments)


def asked(node: int = 11, **attachments: Attachment) -> Message:
    content = train_content(to_arrays(MODEL), instruction(**attachments))
    return train_message(content, node)


def good_reply() -> Message:
    return train_reply(asked(), MODEL, 100, {"train-loss": 0.25, "steps": 7})


# --- arrays ---------------------------------------------------------------------------------


def test_a_model_survives_the_wire_bit_by_bit():
    assert identical(to_state_dict(to_arrays(MODEL)), MODEL)


def test_the_order_of_tensors_survives():
    assert list(to_state_dict(to_arrays(MODEL))) == list(MODEL)


def test_a_model_in_training_can_be_sent():
    weight = torch.nn.Parameter(torch.ones(2, 3))
    back = to_state_dict(to_arrays({"weight": weight, "view": torch.ones(2, 3).t()}))
    assert not back["weight"].requires_grad
    assert back["view"].shape == (3, 2)


def test_unpacked_tensors_can_be_written_to_and_belong_to_nobody_else():
    arrays = to_arrays(MODEL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of tensors over read-only memory
        one, other = to_state_dict(arrays), to_state_dict(arrays)
    for tensor in one.values():
        tensor.add_(1)
    assert identical(other, MODEL)
    assert identical(to_state_dict(arrays), MODEL)


def test_packing_copies():
    model = {"w": torch.zeros(3)}
    arrays = to_arrays(model)
    model["w"].add_(1)
    assert torch.equal(to_state_dict(arrays)["w"], torch.zeros(3))


# --- train messages -------------------------------------------------------------------------


def test_a_train_message_says_everything():
    images = torch.randn(4, 1, 5, 5)
    sent = Attachment({"images": images, "labels": torch.tensor([3, 1, 2, 0])}, {"quality": 0.875})
    model, told = read_train(asked(anchors=sent))
    assert identical(model, MODEL)
    assert (told.server_round, told.num_rounds, told.learning_rate) == (3, 20, 0.0098)
    assert set(told.attachments) == {"anchors"}
    assert identical(told.attachments["anchors"].tensors, dict(sent.tensors))
    assert told.attachments["anchors"].scalars == {"quality": 0.875}


def test_several_attachments_do_not_mix():
    one = Attachment({"t": torch.zeros(2)}, {"a": 1.0})
    other = Attachment({"t": torch.ones(2)}, {})
    _, told = read_train(asked(one=one, other=other))
    assert torch.equal(told.attachments["one"].tensors["t"], torch.zeros(2))
    assert torch.equal(told.attachments["other"].tensors["t"], torch.ones(2))
    assert told.attachments["other"].scalars == {}


def test_a_train_message_is_addressed():
    message = asked(node=12345)
    assert message.metadata.dst_node_id == 12345
    assert message.metadata.message_type == "train"


def test_one_array_record_a_message():
    """Flower's privacy mods refuse messages with more than one."""
    content = asked(anchors=Attachment({"images": torch.ones(2, 2)}, {"quality": 1.0})).content
    assert list(content.array_records) == ["arrays"]
    assert set(content.config_records) == {"config", "anchors"}
    assert len(content.metric_records) == 0
    assert list(good_reply().content.array_records) == ["arrays"]


def test_an_attachment_is_safetensors():
    """Not pickle: unpacking it can not run code."""
    sent = Attachment({"images": torch.rand(2, 2).t()}, {"quality": 0.5})
    record = asked(anchors=sent).content["anchors"]
    assert isinstance(record, ConfigRecord)
    assert set(record) == {"tensors", "quality"}
    assert isinstance(record["tensors"], bytes)
    assert torch.equal(load(record["tensors"])["images"], sent.tensors["images"])


def test_the_config_of_a_train_message():
    """The names other Flower tools, and DESIGN.md, know."""
    record = dict(asked().content["config"])
    assert record == {
        "round": 3,
        "rounds": 20,
        "learning-rate": 0.0098,
        "ancestors": [],
        "last-rounds": [],
    }


def test_the_runs_that_a_run_continues_arrive_in_order():
    ancestors = [Ancestor(2**64 - 1, 10), Ancestor(7, 10), Ancestor(1, 12)]
    content = train_content(to_arrays(MODEL), Instruction(13, 20, 0.1, {}, ancestors))
    _, told = read_train(train_message(content, 11))
    assert told.ancestors == ancestors


# --- sizes ----------------------------------------------------------------------------------


def test_size_of_a_model_is_its_bytes_and_a_small_header_a_tensor():
    model = {"a": torch.zeros(1000, 10), "b": torch.zeros(7, dtype=torch.float64)}
    size = content_bytes(train_content(to_arrays(model), instruction()))
    raw = 1000 * 10 * 4 + 7 * 8
    assert raw < size <= raw + 2 * 128


def test_size_counts_attachments():
    without = train_content(to_arrays(MODEL), instruction())
    sent = Attachment({"images": torch.zeros(10, 1, 28, 28)}, {"quality": 1.0})
    extra = content_bytes(train_content(to_arrays(MODEL), instruction(anchors=sent)))
    raw = 10 * 28 * 28 * 4
    assert raw < extra - content_bytes(without) <= raw + 256


def test_size_of_nothing():
    assert content_bytes(RecordDict()) == 0


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


@pytest.mark.parametrize("claim", [PartitionClaim(0, 1), SampleCounts(1, 0), SampleCounts(90, 9)])
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


# --- evaluate -------------------------------------------------------------------------------


def evaluation_reply() -> Message:
    asked = evaluate_message(evaluate_content(3, to_arrays(MODEL)), 11)
    return evaluate_reply(asked, Evaluation(np.array([2, 0, 5]), np.array([3, 0, 9]), 0.5))


def test_a_model_to_evaluate_travels():
    message = evaluate_message(evaluate_content(3, to_arrays(MODEL)), 11)
    assert (message.metadata.dst_node_id, message.metadata.message_type) == (11, "evaluate")
    server_round, model = read_evaluate(message)
    assert server_round == 3
    assert identical(model, MODEL)


def test_an_evaluation_is_counts_and_a_loss():
    """Nothing of the classes: neither which there are, nor how each fares."""
    reply = evaluation_reply()
    assert {key: dict(record) for key, record in reply.content.items()} == {
        "metrics": {"num-examples": 12, "num-correct": 7, "loss": 0.5}
    }
    assert read_evaluate_reply(reply, 12) == ClientEvaluation(12, 7, 0.5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num-examples": 13}, "num-examples=13, but this client holds 12"),
        ({"num-examples": 12.0}, "num-examples=12.0"),
        ({"num-correct": 13}, "num-correct=13 of 12"),
        ({"num-correct": -1}, "num-correct=-1 of 12"),
        ({"num-correct": 6.5}, "num-correct=6.5"),
        ({"loss": float("nan")}, "loss is nan"),
        ({"loss": [1.0]}, "loss is"),
    ],
)
def test_counts_that_cannot_be(change, words):
    wrong = edited(metrics=lambda m: {**m, **change})(asked(), evaluation_reply())[0]
    with pytest.raises(UnusableReplyError, match=words):
        read_evaluate_reply(wrong, 12)


def test_an_evaluation_that_is_none():
    with pytest.raises(UnusableReplyError, match="num-examples=None"):
        read_evaluate_reply(Message(RecordDict(), reply_to=asked()), 1)
    with pytest.raises(UnusableReplyError, match="CUDA"):
        read_evaluate_reply(fails()(asked(), asked())[0], 1)


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
