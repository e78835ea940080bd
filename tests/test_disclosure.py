"""No count of fewer than ten images of a class leaves a node, nor one that follows from others."""

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fedadb_app.client_context import shares_classes
from fedadb_app.disclosure import LEAST_CELL, WITHHELD, check_disclosed, disclosed
from fedadb_app.errors import ConfigError
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


@pytest.mark.parametrize(
    ("config", "shared"),
    [({}, False), ({"share-class-metrics": True}, True), ({"share-class-metrics": False}, False)],
)
def test_a_node_shares_only_where_its_own_configuration_says_so(config, shared):
    """A run configuration cannot: a key of that name is refused."""
    context = Context(1, 2, config, RecordDict(), {"share-class-metrics": True})
    assert shares_classes(context) is shared


@pytest.mark.parametrize("value", ["yes", 1, "true"])
def test_another_value_is_refused(value):
    context = Context(1, 2, {"share-class-metrics": value}, RecordDict(), {})
    with pytest.raises(ConfigError, match=r"share-class-metrics=.* must be true or false"):
        shares_classes(context)
