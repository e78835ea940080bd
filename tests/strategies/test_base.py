"""The server half that all methods share: who takes part, what fails, what is recorded."""

import itertools
import math

import numpy as np
import pytest
import torch
from fake_grid import node_id
from faults import UNUSABLE, edited, fails, first, silent, superlink_error, twice, with_stranger
from helpers import identical, messages_of, read_csv
from hypothesis import given, settings
from hypothesis import strategies as st

from fedadb_app import messages
from fedadb_app.errors import TrainingError
from fedadb_app.runs.record import RoundRecord
from strategies.participants import draw_participants
from strategies.registry import METHODS

# --- who takes part -------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**63 - 1),
    server_round=st.integers(1, 10**4),
    clients=st.sets(st.integers(0, 2**64 - 1), min_size=1, max_size=40),
    fraction=st.floats(1e-6, 1.0),
    shuffled=st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_a_draw_depends_on_seed_round_and_identities_only(
    seed, server_round, clients, fraction, shuffled
):
    order = sorted(clients)
    drawn = draw_participants(seed, server_round, order, fraction)
    assert drawn == sorted(set(drawn))
    assert set(drawn) <= clients
    assert 1 <= len(drawn) <= len(clients)
    assert abs(len(drawn) - max(1.0, fraction * len(clients))) <= 0.5 + 1e-9
    shuffled.shuffle(order)
    torch.manual_seed(shuffled.getrandbits(32))
    np.random.seed(shuffled.getrandbits(32))
    assert draw_participants(seed, server_round, order, fraction) == drawn
    assert draw_participants(seed, server_round, iter(order), fraction) == drawn


@pytest.mark.parametrize(
    ("clients", "fraction", "size"),
    [
        (100, 0.05, 5),
        (100, 0.29, 29),
        (100, 0.57, 57),
        (100, 0.58, 58),
        (100, 1.0, 100),
        (10, 0.01, 1),
        (1, 0.5, 1),
        (3, 0.5, 2),
        (2, 1.0, 2),
        (1000, 0.001, 1),
        (7, 0.9, 6),
    ],
)
def test_size_of_a_draw(clients, fraction, size):
    assert len(draw_participants(0, 1, range(clients), fraction)) == size


def test_draws_differ_between_rounds_and_seeds():
    draws = {
        tuple(draw_participants(seed, server_round, range(100), 0.05))
        for seed, server_round in itertools.product(range(5), range(1, 11))
    }
    assert len(draws) == 50


def test_everyone_is_drawn_as_often():
    """200 draws of 5 of 20: each client 50 times, give or take five standard deviations."""
    draws = [draw_participants(3, t, range(20), 0.25) for t in range(1, 201)]
    counts = np.bincount(np.concatenate(draws), minlength=20)
    assert np.abs(counts - 50).max() < 5 * math.sqrt(200 * 0.25 * 0.75)


def participants(built) -> list[list[int]]:
    """Per round, the partitions that were sent a train message."""
    partition = {node: config["partition-id"] for node, config in built.grid.nodes.items()}
    rounds: dict[int, list[int]] = {}
    for message in built.grid.trained():
        rounds.setdefault(message.content["config"]["round"], []).append(
            partition[message.metadata.dst_node_id]
        )
    return [sorted(clients) for _, clients in sorted(rounds.items())]


def test_all_methods_of_a_seed_train_the_same_clients(federation):
    built = [
        federation(8, **{"strategy": name, "fraction-train": 0.25, "run-name": name})
        for name in METHODS
    ]
    for each in built:
        each.run()
    schedules = [participants(each) for each in built]
    assert all(schedule == schedules[0] for schedule in schedules)
    assert [len(clients) for clients in schedules[0]] == [2, 2]
    config = built[0].strategy.run.config
    assert schedules[0] == [draw_participants(config.seed, t, range(8), 0.25) for t in (1, 2)]


# --- a whole run as Flower drives it --------------------------------------------------------


@pytest.mark.parametrize("strategy", ["fedavg", "fedadb"])
def test_flower_drives_it(federation, strategy):
    built = federation(strategy=strategy)
    before = {name: tensor.clone() for name, tensor in built.strategy.global_model.items()}
    result = built.run()
    after = built.strategy.global_model
    assert set(result.evaluate_metrics_serverapp) == {1, 2}
    assert set(result.train_metrics_clientapp) == {1, 2}
    assert identical(messages.to_state_dict(result.arrays), after)
    assert all(not torch.equal(after[name], before[name]) for name in before)
    rows = built.rows
    assert [row["round"] for row in rows] == ["1", "2"]
    for t, row in enumerate(rows, start=1):
        assert (row["clients"], row["failures"]) == ("3", "0")
        reported = result.evaluate_metrics_serverapp[t]
        assert row["accuracy"] == f"{reported['accuracy']:.2f}"
        assert row["loss"] == f"{reported['loss']:.6g}"
        assert (row["anchor_quality"] != "") == (strategy == "fedadb")
        assert all(float(row[c]) >= 0 for c in row if c.startswith("seconds"))
        assert float(row["seconds_train"]) > 0
        assert float(row["seconds_evaluate"]) > 0


def test_the_second_round_starts_from_the_first_ones_model(federation):
    built = federation(clients=2)
    seen = []
    update = built.strategy.half.update

    def watched(inputs, updates):
        made = update(inputs, updates)
        seen.append(made.model)
        return made

    built.strategy.half.update = watched
    built.run()
    sent = [messages.read_train(message)[0] for message in built.grid.trained()]
    assert len(sent) == 4
    assert identical(sent[0], sent[1])
    assert identical(sent[2], seen[0])
    assert identical(sent[3], seen[0])


def test_training_learns(federation):
    """Four separable classes: 25 % by chance; a few rounds of FedAvg must do far better."""
    built = federation(
        clients=2, **{"num-server-rounds": 6, "learning-rate": 0.05, "batch-size": 20}
    )
    built.run()
    assert float(built.rows[-1]["accuracy"]) > 90


def test_the_reported_loss_is_weighted_by_samples(federation):
    built = federation(clients=3, **{"num-server-rounds": 1})
    built.fault(0, edited(metrics=lambda m: {**m, "train-loss": 1.0}))
    built.fault(1, edited(metrics=lambda m: {**m, "train-loss": 3.0}))
    built.fault(2, edited(metrics=lambda m: {**m, "train-loss": 900.0}))
    result = built.run()
    sizes = [len(part) for part in built.strategy.run.partition.indices]
    assert len(set(sizes)) > 1
    mean = (1 * sizes[0] + 3 * sizes[1] + 900 * sizes[2]) / sum(sizes)
    assert result.train_metrics_clientapp[1]["train-loss"] == pytest.approx(mean)
    rows = read_csv(built.folder.path / "diagnostics.csv")
    assert {"round": "1", "name": "train_loss", "value": f"{mean:.6g}"} in rows


def test_clients_are_not_asked_to_evaluate(federation):
    built = federation()
    built.run()
    assert {m.metadata.message_type for m in built.grid.sent} == {"query", "train"}


def test_flower_waits_no_longer_than_round_timeout(federation):
    built = federation(**{"round-timeout": 77.0})
    built.run()
    assert 77.0 in built.grid.timeouts
    assert None not in built.grid.timeouts


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
    sent = messages.to_state_dict(honest.content["arrays"])
    assert identical(built.strategy.global_model, sent)
    assert "not asked" in messages_of(caplog.records, "WARNING")[0]


# --- the order of replies -------------------------------------------------------------------


def test_the_order_of_replies_changes_no_bit(federation):
    """Float sums depend on their order, so the server adds in identity order."""
    models = []
    for position, order in enumerate(itertools.permutations(range(3))):
        built = federation(**{"run-name": f"order-{position}", "partition": "dirichlet"})
        built.grid.arrange = lambda replies, order=order: (
            iter([replies[i] for i in order]) if len(replies) == 3 else replies
        )
        built.run()
        models.append(built.strategy.global_model)
    assert all(identical(models[0], model) for model in models[1:])


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


# --- evaluation -----------------------------------------------------------------------------


def test_evaluate_every_and_always_the_last(federation):
    built = federation(clients=2, **{"num-server-rounds": 5, "evaluate-every": 2})
    result = built.run()
    assert [row["accuracy"] != "" for row in built.rows] == [False, True, False, True, True]
    assert [row["loss"] != "" for row in built.rows] == [False, True, False, True, True]
    assert set(result.evaluate_metrics_serverapp) == {2, 4, 5}
    classes = read_csv(built.folder.path / "class_accuracy.csv")
    assert [row["round"] for row in classes] == ["2", "4", "5"]


def test_evaluate_none(federation):
    built = federation(clients=2, evaluate="none")
    result = built.run()
    assert [row["accuracy"] for row in built.rows] == ["", ""]
    assert [row["loss"] for row in built.rows] == ["", ""]
    assert not result.evaluate_metrics_serverapp
    assert not (built.folder.path / "class_accuracy.csv").exists()


def test_evaluation_leaves_the_run_as_it_is(federation):
    one = federation(clients=2, evaluate="none", **{"run-name": "none"})
    other = federation(clients=2)
    one.run()
    other.run()
    assert identical(one.strategy.global_model, other.strategy.global_model)


# --- the row of a round ---------------------------------------------------------------------


def test_the_learning_rate_of_each_round(federation):
    built = federation(
        clients=2,
        **{"num-server-rounds": 3, "learning-rate": 0.08, "learning-rate-decay": 0.5},
    )
    built.run()
    assert [float(row["learning_rate"]) for row in built.rows] == [0.08, 0.04, 0.02]
    told = [messages.read_train(m)[1] for m in built.grid.trained()]
    assert [i.learning_rate for i in told] == [0.08, 0.08, 0.04, 0.04, 0.02, 0.02]
    assert {i.num_rounds for i in told} == {3}


@pytest.mark.parametrize("strategy", sorted(METHODS))
def test_bytes_of_each_round(federation, strategy):
    built = federation(strategy=strategy, clients=4, **{"fraction-train": 0.5})
    built.run()
    model = sum(t.numel() * t.element_size() for t in built.strategy.global_model.values())
    for t, row in enumerate(built.rows, start=1):
        sent = [m for m in built.grid.trained() if m.content["config"]["round"] == t]
        assert len(sent) == 2
        assert int(row["bytes_down"]) == sum(messages.content_bytes(m.content) for m in sent)
        assert 2 * model < int(row["bytes_up"]) < 2.1 * model
        extra = int(row["bytes_down"]) - int(row["bytes_up"])
        anchors = 4 * 28 * 28 * 4
        expected = {"fedavg": (0, 0), "fedadb": (2 * anchors, 2.2 * anchors)}
        low, high = expected.get(strategy, (0, math.inf))
        assert low <= extra <= high


def test_a_round_that_never_came_has_no_row(federation):
    built = federation(**{"num-server-rounds": 1})
    assert built.rows == []
    built.run()
    assert len(built.rows) == 1
    assert list(built.rows[0]) == RoundRecord.header()


def test_superlink_errors_for_all_end_the_run_with_the_reason(federation):
    built = federation(clients=2)
    for client in range(2):
        built.fault(client, superlink_error)
    with pytest.raises(TrainingError, match="Node Unavailable"):
        built.run()
