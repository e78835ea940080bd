"""What a round does with replies that fail, are unusable or superfluous, and when it ends."""

import math

import pytest
import torch
from fake_grid import node_id
from faults import UNUSABLE, edited, fails, first, silent, twice, with_stranger
from helpers import identical, messages_of, read_csv

from fedadb_app.errors import TrainingError
from fedadb_app.wire_arrays import to_state_dict
from strategies.participants import draw_participants

# --- a reply that can not be used -----------------------------------------------------------


# One of each way in which a reply is missed; test_replies has every reason not to use one.
@pytest.mark.parametrize("name", ["silent", "error", "node is gone", "garbage", "NaN", "too many"])
def test_the_round_goes_on_without_it(federation, caplog, name):
    fault, reason = UNUSABLE[name]
    alone = federation(**{"num-server-rounds": 1, "run-name": "alone"})
    alone.fault(1, silent)
    alone.run()
    caplog.clear()

    built = federation(**{"num-server-rounds": 1})
    built.fault(1, fault)
    built.run()
    assert (built.rows[0]["clients"], built.rows[0]["failures"]) == ("2", "1")
    assert identical(built.strategy.global_model, alone.strategy.global_model)
    assert built.rows[0]["bytes_up"] == alone.rows[0]["bytes_up"]
    (warning,) = messages_of(caplog.records, "WARNING")
    assert "round 1" in warning
    assert "client 1 " in warning
    assert reason in warning


def test_a_client_that_raises_is_a_failed_client(federation, caplog):
    """A real exception of the real ClientApp, here of a node that lost its --node-config."""
    built = federation(**{"num-server-rounds": 1})
    built.grid.context(node_id(2)).node_config = {}
    built.run()
    assert built.rows[0]["failures"] == "1"
    (warning,) = messages_of(caplog.records, "WARNING")
    assert "client 2 " in warning
    assert "--node-config" in warning


def test_a_failed_client_takes_part_in_the_next_round(federation):
    built = federation()
    built.fault(1, silent)
    built.grid.before_train = lambda t: built.grid.faults.clear() if t == 2 else None
    built.run()
    assert [row["failures"] for row in built.rows] == ["1", "0"]
    assert [row["clients"] for row in built.rows] == ["2", "3"]


def test_a_node_that_dies_between_look_and_train(federation, caplog):
    """The SuperLink then replies itself, under its own node id."""
    built = federation(**{"num-server-rounds": 1})
    built.grid.before_train = lambda t: built.grid.nodes.pop(node_id(1))
    built.run()
    assert (built.rows[0]["clients"], built.rows[0]["failures"]) == ("2", "1")
    (warning,) = messages_of(caplog.records, "WARNING")
    assert "client 1 " in warning
    assert "Node Unavailable" in warning


# --- replies that nobody waits for ----------------------------------------------------------


@pytest.mark.parametrize(("fault", "word"), [(twice, "already"), (with_stranger, "not asked")])
def test_a_superfluous_reply_is_ignored_and_logged(federation, caplog, fault, word):
    plain = federation(**{"num-server-rounds": 1, "run-name": "plain"})
    plain.run()
    caplog.clear()

    built = federation(**{"num-server-rounds": 1})
    built.fault(1, fault)
    built.run()
    assert identical(built.strategy.global_model, plain.strategy.global_model)
    for column in ("clients", "failures", "bytes_up", "accuracy"):
        assert built.rows[0][column] == plain.rows[0][column]
    (warning,) = messages_of(caplog.records, "WARNING")
    assert word in warning


def test_an_error_after_a_good_reply_does_not_make_it_a_failure(federation):
    built = federation(**{"num-server-rounds": 1})
    built.fault(1, lambda asked, reply: [reply, *fails()(asked, reply)])
    built.run()
    assert (built.rows[0]["clients"], built.rows[0]["failures"]) == ("3", "0")


def test_a_node_that_was_not_drawn_cannot_take_part(federation, caplog):
    """One of four is drawn; another, known node sends a model of its own accord."""
    built = federation(clients=4, **{"num-server-rounds": 1, "fraction-train": 0.25})
    (drawn,) = draw_participants(0, 1, range(4), 0.25)
    intruder = node_id((drawn + 1) % 4)

    def from_intruder(asked, reply):
        forged = edited(first(lambda a: a * 0))(asked, reply)[0]
        forged.metadata.__dict__["_src_node_id"] = intruder
        forged.metadata.__dict__["_reply_to_message_id"] = "an earlier message"
        return [forged, reply]

    built.fault(drawn, from_intruder)
    built.run()
    (honest,) = [m for m in built.grid.received if m.metadata.src_node_id == node_id(drawn)][1:]
    sent = to_state_dict(honest.content["arrays"])
    assert identical(built.strategy.global_model, sent)
    assert "not asked" in messages_of(caplog.records, "WARNING")[0]


# --- too few, or nothing finite -------------------------------------------------------------


def test_too_few_usable_updates_end_the_run(federation, caplog):
    built = federation(clients=3, **{"num-server-rounds": 3})
    built.grid.before_train = lambda t: t == 2 and [built.fault(i, fails()) for i in (0, 2)]
    with pytest.raises(TrainingError, match=r"round 2: 1 of 3 .* 2 needed") as error:
        built.run()
    assert "min-success-fraction=0.5" in str(error.value)
    assert "client 0: " in str(error.value)
    assert "CUDA out of memory" in str(error.value)
    assert len(messages_of(caplog.records, "WARNING")) == 2
    rows = built.rows
    assert [row["round"] for row in rows] == ["1", "2"]
    assert (rows[1]["clients"], rows[1]["failures"]) == ("1", "2")
    assert rows[0]["accuracy"] != ""
    assert rows[1]["accuracy"] == ""
    classes = read_csv(built.folder.path / "class_accuracy.csv")
    assert [row["round"] for row in classes] == ["1"]


def test_the_model_of_the_last_good_round_stays(federation):
    good = federation(**{"num-server-rounds": 1, "run-name": "good"})
    good.run()
    built = federation(**{"num-server-rounds": 2, "learning-rate": 0.01})
    built.grid.before_train = lambda t: t == 2 and [built.fault(i, silent) for i in range(3)]
    with pytest.raises(TrainingError, match="0 of 3"):
        built.run()
    assert identical(built.strategy.global_model, good.strategy.global_model)


@pytest.mark.parametrize(
    ("clients", "least", "failing", "ends"),
    [
        (2, 0.5, 1, False),
        (3, 0.5, 1, False),
        (3, 0.5, 2, True),
        (3, 1.0, 0, False),
        (3, 1.0, 1, True),
        (3, 0.0, 2, False),
        (3, 0.0, 3, True),  # nobody is too few, whatever the fraction
        (25, 0.28, 18, False),  # 0.28 * 25 is 7.000000000000001 in floating point
        (25, 0.28, 19, True),
    ],
)
def test_the_least_share_of_usable_updates(federation, clients, least, failing, ends):
    built = federation(clients, **{"min-success-fraction": least, "num-server-rounds": 1})
    for client in range(failing):
        built.fault(client, silent)
    if ends:
        with pytest.raises(TrainingError, match=f"{clients - failing} of {clients}"):
            built.run()
    else:
        built.run()
    assert built.rows[0]["clients"] == str(clients - failing)
    assert built.rows[0]["failures"] == str(failing)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_global_model_that_is_not_finite_ends_the_run(federation, value):
    built = federation()
    update = built.strategy.half.update

    def explode(inputs, updates):
        made = update(inputs, updates)
        if inputs.server_round == 2:
            next(iter(made.model.values())).view(-1)[-1] = value
        return made

    built.strategy.half.update = explode
    with pytest.raises(TrainingError, match=r"round 2.*not finite.*learning-rate"):
        built.run()
    assert [row["round"] for row in built.rows] == ["1", "2"]
    assert built.rows[1]["accuracy"] == ""
    assert all(torch.isfinite(t).all() for t in built.strategy.global_model.values())
