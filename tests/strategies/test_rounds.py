"""Rounds as Flower drives them: what is sent, evaluated and recorded."""

import itertools
import math

import pytest
import torch
from faults import edited, superlink_error
from helpers import identical, read_csv

from fedadb_app import messages
from fedadb_app.errors import TrainingError
from fedadb_app.runs.record import RoundRecord
from fedadb_app.wire_arrays import content_bytes, to_state_dict
from strategies.registry import METHODS

# --- a whole run as Flower drives it --------------------------------------------------------


@pytest.mark.parametrize("strategy", ["fedavg", "fedadb"])
def test_flower_drives_it(federation, strategy):
    built = federation(strategy=strategy)
    before = {name: tensor.clone() for name, tensor in built.strategy.global_model.items()}
    result = built.run()
    after = built.strategy.global_model
    assert set(result.evaluate_metrics_serverapp) == {1, 2}
    assert set(result.train_metrics_clientapp) == {1, 2}
    assert identical(to_state_dict(result.arrays), after)
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
        assert int(row["bytes_down"]) == sum(content_bytes(m.content) for m in sent)
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
