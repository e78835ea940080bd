"""Which evaluations of a client can not be used, and what the others hold."""

import numpy as np
import pytest
from faults import edited, fails
from flwr.app import Message, RecordDict
from helpers import identical
from message_cases import MODEL, asked

from fedadb_app.client_state import Ancestor
from fedadb_app.data.clients import SampleCounts
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
from fedadb_app.refusals import RefusalError, UnusableReplyError
from fedadb_app.wire_arrays import to_arrays

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
