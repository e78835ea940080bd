"""Which replies can not be used, whose they are, and what the others hold."""

import numpy as np
import pytest
import torch
from faults import UNUSABLE, edited, fails, first, superlink_error
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from helpers import identical
from message_cases import MODEL, asked, good_reply

from fedadb_app.client_state import Ancestor
from fedadb_app.data.clients import PartitionClaim, SampleCounts
from fedadb_app.disclosure import Sharing
from fedadb_app.evaluation import ClientEvaluation, Evaluation
from fedadb_app.evaluation_messages import (
    EvaluateInstruction,
    evaluate_content,
    evaluate_message,
    evaluate_reply,
    read_evaluate,
    read_evaluate_reply,
)
from fedadb_app.messages import (
    identity_query,
    identity_reply,
    read_identity,
    read_train_reply,
    train_reply,
)
from fedadb_app.refusals import RefusalError, UnusableReplyError
from fedadb_app.wire_arrays import to_arrays
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


# --- evaluate -------------------------------------------------------------------------------


TWELVE = SampleCounts(train=0, held_out=12)
UNSENT = (np.arange(12) % 3, np.full((12, 3), 1 / 3, np.float32))


TOLD = Evaluation(np.array([2, 0, 5]), np.array([3, 0, 9]), 0.5, *UNSENT)


def asked_to_evaluate(**told) -> Message:
    return evaluate_message(evaluate_content(to_arrays(MODEL), EvaluateInstruction(3, **told)), 11)


def evaluation_reply(personal=None) -> Message:
    return evaluate_reply(asked(), TOLD, Sharing(), personal=personal)


def test_a_model_to_evaluate_travels():
    told = {"ancestors": [Ancestor(5, 2)], "heads": ["agb", "lcb"]}
    message = asked_to_evaluate(**told)
    assert (message.metadata.dst_node_id, message.metadata.message_type) == (11, "evaluate")
    model, instruction = read_evaluate(message)
    assert instruction == EvaluateInstruction(3, **told)
    assert identical(model, MODEL)
    assert list(read_evaluate(asked_to_evaluate())[1].heads) == []


def test_an_evaluation_is_counts_a_loss_and_means_over_images():
    """Nothing of the classes: neither which there are, nor how each fares."""
    reply = evaluation_reply()
    (record,) = reply.content.values()
    # of each image the probabilities are thirds: one is 2/3 off, two are 1/3 off
    means = {"ece": 0.0, "brier": 6 / 9}
    expected = {"num-examples": 12, "num-correct": 7, "loss": 0.5, **means}
    assert dict(record) == pytest.approx(expected, abs=1e-7)
    found = read_evaluate_reply(reply, TWELVE, 3)
    assert found == ClientEvaluation(12, 7, 0.5, None, found.metrics)
    assert found.metrics == pytest.approx(means, abs=1e-7)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num-examples": 13}, "num-examples=13, but this client holds 12"),
        ({"num-examples": 12.0}, "num-examples=12.0"),
        ({"num-correct": 13}, "num-correct=13 of 12"),
        ({"num-correct": -1}, "num-correct=-1 of 12"),
        ({"num-correct": 6.5}, "num-correct=6.5"),
        ({"loss": float("nan")}, "loss=nan is not finite"),
        ({"loss": [1.0]}, "loss is"),
        ({"ece": 1.5}, "ece=1.5 is not between 0 and 1"),
    ],
)
def test_counts_that_cannot_be(change, words):
    wrong = edited(metrics=lambda m: {**m, **change})(asked(), evaluation_reply())[0]
    with pytest.raises(UnusableReplyError, match=words):
        read_evaluate_reply(wrong, TWELVE, 3)


def validated_reply() -> Message:
    few = Evaluation(np.array([1, 0, 0]), np.array([2, 1, 1]), 0.25, *(a[:4] for a in UNSENT))
    return evaluate_reply(asked(), TOLD, Sharing(classes=True), few)


def test_a_validation_part_is_counted_beside_and_never_per_class():
    reply = validated_reply()
    told = {key for key in reply.content["metrics"] if key.startswith("val-")}
    assert told == {"val-num-examples", "val-num-correct", "val-loss"}  # of four images no mean
    found = read_evaluate_reply(reply, SampleCounts(0, 12, 4), 3)
    assert found.validation == ClientEvaluation(4, 1, 0.25)
    assert (found.num_examples, found.num_correct) == (12, 7)
    assert read_evaluate_reply(reply, TWELVE, 3).validation is None


def test_a_validation_part_that_cannot_be():
    for change, words in (
        ({"val-num-examples": 5}, "num-examples=5, but this client holds 4"),
        ({"val-num-correct": 5}, "num-correct=5 of 4"),
        ({"val-ece": 2.0}, "ece=2 is not between 0 and 1"),
    ):
        wrong = edited(metrics=lambda m, c=change: {**m, **c})(asked(), validated_reply())[0]
        with pytest.raises(UnusableReplyError, match=words):
            read_evaluate_reply(wrong, SampleCounts(0, 12, 4), 3)
    with pytest.raises(RefusalError, match="num-examples=None, but this client holds 4"):
        read_evaluate_reply(evaluation_reply(), SampleCounts(0, 12, 4), 3)


def test_counts_per_head_before_and_after_fine_tuning():
    reply = evaluation_reply(([7, 5], [12, 0]))
    metrics = dict(reply.content["metrics"])
    assert (metrics["correct-before"], metrics["correct-after"]) == ([7, 5], [12, 0])
    assert read_evaluate_reply(reply, TWELVE, 3, num_heads=2).personal == ([7, 5], [12, 0])
    assert read_evaluate_reply(evaluation_reply(), TWELVE, 3, num_heads=2).personal is None
    assert read_evaluate_reply(reply, TWELVE, 3).personal is None  # nobody asked


@pytest.mark.parametrize(
    "change",
    [
        {"correct-after": [13, 0]},
        {"correct-after": [-1, 0]},
        {"correct-after": [1.0, 0.0]},
        {"correct-after": [1]},
        {"correct-before": 7},
    ],
)
def test_counts_per_head_that_cannot_be(change):
    reply = evaluation_reply(([7, 5], [12, 0]))
    wrong = edited(metrics=lambda m: {**m, **change})(asked(), reply)[0]
    with pytest.raises(UnusableReplyError, match="not 2 whole numbers up to 12"):
        read_evaluate_reply(wrong, TWELVE, 3, num_heads=2)
    del reply.content["metrics"]["correct-after"]
    with pytest.raises(UnusableReplyError, match="not 2 whole numbers"):
        read_evaluate_reply(reply, TWELVE, 3, num_heads=2)


def test_an_evaluation_that_is_none():
    with pytest.raises(UnusableReplyError, match="num-examples=None"):
        read_evaluate_reply(Message(RecordDict(), reply_to=asked()), TWELVE, 3)
    with pytest.raises(UnusableReplyError, match="CUDA"):
        read_evaluate_reply(fails()(asked(), asked())[0], TWELVE, 3)


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
