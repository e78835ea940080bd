"""No count of fewer than ten images of a class leaves a node, nor one that follows from others."""

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fedadb_app.client_context import sharing
from fedadb_app.config import RunConfig
from fedadb_app.disclosure import (
    LEAST_CELL,
    WITHHELD,
    Sharing,
    check_disclosed,
    check_disclosed_metrics,
    disclosed,
    disclosed_metrics,
)
from fedadb_app.errors import ConfigError
from fedadb_app.evaluation import Evaluation
from fedadb_app.metrics import metrics_of
from fedadb_app.refusals import UnusableReplyError

classes = st.lists(st.tuples(st.integers(0, 60), st.floats(0, 1)), min_size=1, max_size=7)


@settings(max_examples=150, deadline=None)
@given(classes)
def test_every_count_that_is_told_or_follows_is_large_enough(held):
    total = np.array([n for n, _ in held], np.int64)
    correct = np.array([round(n * share) for n, share in held], np.int64)
    images, right = disclosed(total, correct)
    # what the server knows anyway: all images, and all right ones
    known = [
        (images, total, int(total.sum())),
        (right, correct, int(correct.sum())),
        (
            [n - r if r != WITHHELD else WITHHELD for n, r in zip(images, right, strict=True)],
            total - correct,
            int((total - correct).sum()),
        ),
    ]
    for told, true, everything in known:
        shown = [n for n in told if n != WITHHELD]
        assert all(n >= LEAST_CELL for n in shown)
        assert [n for n, m in zip(true, told, strict=True) if m != WITHHELD] == shown
        if shown and len(shown) < len(told):
            assert everything - sum(shown) >= LEAST_CELL
    assert all(r == WITHHELD or n != WITHHELD for n, r in zip(images, right, strict=True))
    # the same classes whatever the model gets right: rounds cannot be subtracted from one another
    assert disclosed(total, total * 0)[0] == images


def test_by_hand():
    total, correct = np.array([100, 50, 30, 4]), np.array([80, 25, 28, 0])
    # of four images nothing; so of the next smallest class nothing, or they would follow;
    # of those two 34 are left together. Right and wrong: 80 and 20, 25 and 25; left: 28 and 6,
    # which is too few, so the next smallest is withheld: then 53 and 31
    assert disclosed(total, correct) == ([100, 50, -1, -1], [80, -1, -1, -1])


def test_nothing_is_told_of_classes_that_would_give_one_another_away():
    assert disclosed(np.array([40, 3]), np.array([20, 3])) == ([-1, -1], [-1, -1])


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ([[20, 20]], "not 2 whole numbers"),
        ([[20, 20], [10]], "not 2 whole numbers"),
        ([[20, 20], [10, 1.5]], "not 2 whole numbers"),
        ([[20, -2], [10, -1]], "not 2 whole numbers"),
        ([[20, "x"], [10, -1]], "not 2 whole numbers"),
        ([[30, 20], [10, 10]], "more than its 40 samples"),
        ([[20, 20], [21, 10]], "more than its 40 samples"),
        ([[20, -1], [10, 10]], "more than its 40 samples"),
    ],
)
def test_what_cannot_be_true_is_refused(told, words):
    with pytest.raises(UnusableReplyError, match=words):
        check_disclosed(told, 2, 40)


def test_what_can_be_true_is_taken():
    assert check_disclosed([[20, 20], [10, -1]], 2, 40) == ([20, 20], [10, -1])


# --- metrics --------------------------------------------------------------------------------


def evaluation(*sizes):
    """So many images of each class, with some probabilities."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    scores = np.random.default_rng(0).random((len(labels), len(sizes))).astype(np.float32)
    probabilities = scores / scores.sum(axis=1, keepdims=True)
    right = labels[probabilities.argmax(axis=1) == labels]
    counts = [np.bincount(x, minlength=len(sizes)) for x in (right, labels)]
    return Evaluation(*counts, 1.0, labels, probabilities)


@pytest.mark.parametrize(
    ("sizes", "allowed", "names"),
    [
        ((5, 4), Sharing(True, True), set()),  # too few images, whoever knows them
        ((6, 4), Sharing(), {"ece", "brier"}),
        ((40, 40), Sharing(), {"ece", "brier"}),
        ((40, 9), Sharing(classes=True), {"ece", "brier"}),
        ((40, 10), Sharing(classes=True), {"ece", "brier", "auc"}),
        ((40, 0), Sharing(public=True), {"ece", "brier"}),  # the others are not defined
        ((9, 3), Sharing(public=True), {"ece", "brier", "auc", "balanced-accuracy", "macro-f1"}),
    ],
)
def test_which_metrics_are_told(sizes, allowed, names):
    found = evaluation(*sizes)
    told = disclosed_metrics(found, allowed)
    assert told.keys() == names
    whole = metrics_of(found.labels, found.probabilities).whole
    assert told == {name: whole[name] for name in names}


def test_why_they_are_withheld():
    """Of two classes, a balanced accuracy and the counts of all images give away the small one."""
    secret, correct = (25, 3), (20, 1)
    balanced = sum(r / n for r, n in zip(correct, secret, strict=True)) / 2
    fits = [
        (n, r)
        for n in range(1, 28)
        for r in range(22)
        if r <= n
        and 0 <= 21 - r <= 28 - n
        and abs((r / n + (21 - r) / (28 - n)) / 2 - balanced) < 1e-9
    ]
    assert sorted(fits) == [(3, 1), (25, 20)]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"auc": 1.5}, "auc=1.5 is not between 0 and 1"),
        ({"ece": -0.1}, "ece=-0.1 is not between 0 and 1"),
        ({"brier": 2.5}, "brier=2.5 is not between 0 and 2"),
        ({"balanced-accuracy": 101}, "balanced-accuracy=101 is not between 0 and 100"),
        ({"macro-f1": float("nan")}, "macro-f1=nan is not finite"),
        ({"auc": [0.5]}, "auc is a list"),
    ],
)
def test_metrics_that_cannot_be_true_are_refused(told, words):
    with pytest.raises(UnusableReplyError, match=words):
        check_disclosed_metrics({"loss": 1.0, **told})


def test_metrics_that_can_be_true_are_taken():
    told = {"num-examples": 20, "auc": 0.5, "brier": 2, "balanced-accuracy": 100.0}
    assert check_disclosed_metrics(told) == {"auc": 0.5, "brier": 2.0, "balanced-accuracy": 100.0}


# --- the node's own word --------------------------------------------------------------------

OWN = RunConfig(dataset="nodes", classes="a,b", image_shape="1x28x28", evaluate="clients")


def test_labels_of_a_public_data_set_are_no_secret():
    context = Context(1, 2, {}, RecordDict(), {})
    assert sharing(context, RunConfig(dataset="digits")) == Sharing(public=True)
    assert sharing(context, OWN) == Sharing()


@pytest.mark.parametrize(
    ("config", "shared"),
    [({}, False), ({"share-class-metrics": True}, True), ({"share-class-metrics": False}, False)],
)
def test_a_node_shares_only_where_its_own_configuration_says_so(config, shared):
    """A run configuration cannot: a key of that name is refused."""
    context = Context(1, 2, config, RecordDict(), {"share-class-metrics": True})
    assert sharing(context, OWN).classes is shared


@pytest.mark.parametrize("value", ["yes", 1, "true"])
def test_another_value_is_refused(value):
    context = Context(1, 2, {"share-class-metrics": value}, RecordDict(), {})
    with pytest.raises(ConfigError, match=r"share-class-metrics=.* must be true or false"):
        sharing(context, OWN)
