"""Nodes with their own data: who evaluates, and what never leaves a node."""

import logging

import pytest
import torch
from faults import fails, silent
from helpers import federation_of_nodes, identical, messages_of, own_data, read_csv, read_json
from own_data_cases import HELD_OUT, HOSPITALS, answers, diagnostics

from fedadb_app import messages
from fedadb_app.client_context import configured_data
from fedadb_app.data.clients import client_data
from fedadb_app.evaluation import evaluate
from fedadb_app.models.classifier import ModelSpec, build_classifier

# --- a run ----------------------------------------------------------------------------------


def test_three_skewed_hospitals_train_and_evaluate(hospitals, caplog):
    built = hospitals()
    with caplog.at_level(logging.INFO):
        built.run()
    assert [(r["clients"], r["failures"]) for r in built.rows] == [("3", "0")] * 2
    assert all(row["accuracy"] and row["loss"] for row in built.rows)
    assert diagnostics(built, "evaluating_clients") == [3, 3]
    assert diagnostics(built, "evaluation_failures") == [0, 0]
    manifest = read_json(built.folder.path / "partition.json")
    assert manifest["rule"] == "nodes"
    assert manifest["clients"] == [
        {"client": 100 + k, "size": len(labels) - out}
        for k, (labels, out) in enumerate(zip(HOSPITALS, HELD_OUT, strict=True))
    ]
    counts = "{'class-0': 20, 'class-1': 4, 'class-2': 0, 'class-3': 0}; held out: 6"
    assert f"on this node: {counts}" in caplog.text


def test_a_client_is_its_node(hospitals):
    """Its batches follow from its node's id: another node with the same images trains otherwise."""
    one, same, other = (hospitals(run_name=name, batch_size=4) for name in ("1", "2", "3"))
    for node in list(other.grid.nodes):
        other.grid.nodes[node + 7] = other.grid.nodes.pop(node)
    for built in (one, same, other):
        built.run()
    assert identical(one.strategy.global_model, same.strategy.global_model)
    assert not identical(one.strategy.global_model, other.strategy.global_model)


def test_nothing_about_labels_leaves_a_node(hospitals):
    built = hospitals(strategy="fedadb")
    built.run()
    for reply in built.grid.received:
        records = {key: set(record.keys()) for key, record in reply.content.items()}
        assert (
            records
            == {
                "query": {"identity": {"num-examples", "num-held-out"}},
                "train": {
                    "arrays": set(built.strategy.global_model),
                    "metrics": {"num-examples", "train-loss"},
                },
                "evaluate": {"metrics": {"num-examples", "num-correct", "loss"}},
            }[reply.metadata.message_type]
        )


def test_feddyn_takes_the_mean_of_what_is_stated(hospitals):
    built = hospitals(strategy="feddyn", num_server_rounds=1)
    built.run()
    sizes = [len(labels) - out for labels, out in zip(HOSPITALS, HELD_OUT, strict=True)]
    _, told = messages.read_train(built.grid.trained()[0])
    assert told.attachments["feddyn"].scalars["mean-examples"] == pytest.approx(sum(sizes) / 3)


# --- evaluation by clients ------------------------------------------------------------------


def test_accuracy_is_correct_over_held_out_samples_of_all(hospitals):
    """Not the mean of the clients' accuracies; by hand, for the model that was sent."""
    built = hospitals(num_server_rounds=1)
    built.run()
    config, strategy = built.strategy.run.config, built.strategy
    model = build_classifier(ModelSpec.of(config, strategy.run.schema), 0)
    model.load_state_dict(strategy.global_model)
    correct, total, loss = 0, 0, 0.0
    for context in map(built.grid.context, built.grid.nodes):
        held = configured_data(context, config)
        data = client_data(config, held, torch.device("cpu")).held_out
        found = evaluate(model, data, config)
        correct += found.correct.sum()
        total += len(data)
        loss += found.loss * len(data)
    assert total == sum(HELD_OUT)
    assert built.rows[0]["accuracy"] == f"{100 * correct / total:.2f}"
    assert built.rows[0]["loss"] == f"{loss / total:.6g}"


def test_the_weights_by_hand(hospitals):
    built = hospitals(num_server_rounds=1)
    for node, (correct, loss) in zip(built.grid.nodes, [(8, 1.0), (3, 2.0), (0, 4.0)], strict=True):
        built.grid.evaluate_faults[node] = answers(correct, loss)
    result = built.run()
    assert built.rows[0]["accuracy"] == "68.75"  # 11 of 16
    assert built.rows[0]["loss"] == "1.75"  # (8 * 1 + 6 * 2 + 2 * 4) / 16
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == 68.75
    assert not result.evaluate_metrics_serverapp


def test_the_order_of_the_answers_changes_no_bit(hospitals):
    one, other = hospitals(run_name="one"), hospitals(run_name="other")
    other.grid.arrange = lambda replies: list(replies)[::-1]
    losses = []
    for built in (one, other):
        for node, loss in zip(built.grid.nodes, [0.1, 0.2, 0.3], strict=True):
            built.grid.evaluate_faults[node] = answers(1, loss)
        losses.append(built.run().evaluate_metrics_clientapp[2]["loss"])
    assert losses[0] == losses[1]


def test_a_failed_evaluator_is_left_out_logged_and_counted(hospitals, caplog):
    built = hospitals(num_server_rounds=1)
    built.grid.evaluate_faults = {100: fails(), 101: answers(3, 2.0), 102: silent}
    built.run()
    assert (built.rows[0]["accuracy"], built.rows[0]["loss"]) == ("50.00", "2")
    assert (built.rows[0]["clients"], built.rows[0]["failures"]) == ("3", "0")
    assert diagnostics(built, "evaluating_clients") == [1]
    assert diagnostics(built, "evaluation_failures") == [2]
    said = messages_of(caplog.records, "WARNING")
    assert any("round 1: client 100 failed: " in s and "CUDA" in s for s in said)
    assert any("round 1: client 102 failed: no reply" in s for s in said)


@pytest.mark.parametrize("fault", [fails(), silent, answers(99, 1.0), answers(1, float("inf"))])
def test_if_nobody_can_evaluate_the_cell_is_empty_and_a_warning_says_so(hospitals, caplog, fault):
    built = hospitals(num_server_rounds=1)
    built.grid.evaluate_faults = dict.fromkeys(built.grid.nodes, fault)
    built.run()
    assert (built.rows[0]["accuracy"], built.rows[0]["loss"]) == ("", "")
    assert "round 1: no client could evaluate" in messages_of(caplog.records, "WARNING")
    assert diagnostics(built, "evaluation_failures") == [3]


def test_a_node_with_nothing_to_evaluate_is_not_asked(federation, tmp_path, caplog):
    nodes = {1: own_data(tmp_path / "one.npz", [2]), 2: own_data(tmp_path / "two.npz", [0, 1] * 5)}
    built = federation(nodes=nodes, **federation_of_nodes(), **{"num-server-rounds": 1})
    built.run()
    asked = [m for m in built.grid.sent if m.metadata.message_type == "evaluate"]
    assert [m.metadata.dst_node_id for m in asked] == [2]
    del nodes[2]
    alone = federation(
        nodes=nodes, **federation_of_nodes(), **{"num-server-rounds": 1, "run-name": "alone"}
    )
    alone.run()
    assert alone.rows[0]["accuracy"] == ""
    assert "round 1: no connected client holds samples out" in messages_of(
        caplog.records, "WARNING"
    )


def test_a_share_of_the_clients_evaluates_drawn_by_seed_and_round(federation):
    built = federation(
        clients=8, evaluate="clients", **{"fraction-evaluate": 0.25, "num-server-rounds": 4}
    )
    built.run()
    again = federation(
        clients=8,
        evaluate="clients",
        **{"fraction-evaluate": 0.25, "num-server-rounds": 4, "run-name": "again"},
    )
    again.run()

    def schedule(one):
        asked = [m for m in one.grid.sent if m.metadata.message_type == "evaluate"]
        return [(m.content["config"]["round"], m.metadata.dst_node_id) for m in asked]

    assert [t for t, _ in schedule(built)] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert len({node for _, node in schedule(built)}) > 2
    assert schedule(built) == schedule(again)


def test_evaluate_every_and_always_the_last(hospitals):
    built = hospitals(num_server_rounds=5, evaluate_every=2)
    built.run()
    assert [row["accuracy"] != "" for row in built.rows] == [False, True, False, True, True]
    assert not (built.folder.path / "class_accuracy.csv").exists()


def test_class_accuracies_are_in_the_nodes_log_and_nowhere_else(hospitals, caplog):
    with caplog.at_level(logging.INFO):
        hospitals(num_server_rounds=1).run()
    said = [s for s in messages_of(caplog.records, "INFO") if "correct on this node" in s]
    assert len(said) == 3
    assert said[0].startswith("round 1, correct on this node: class-0 ")
    assert said[0].count(" of 2") == 4  # two held out of each class


def test_both_evaluate(federation):
    built = federation(clients=3, evaluate="both")
    built.run()
    server = federation(clients=3, evaluate="clients", **{"run-name": "clients"})
    server.run()
    assert identical(built.strategy.global_model, server.strategy.global_model)
    clients = diagnostics(built, "accuracy_clients")
    assert [f"{a:.2f}" for a in clients] == [row["accuracy"] for row in server.rows]
    assert len(read_csv(built.folder.path / "class_accuracy.csv")) == 2
    assert built.rows[0]["accuracy"] != server.rows[0]["accuracy"]  # 80 test images, 75 held out


def test_nodes_with_their_own_data_and_a_test_set_at_the_server(hospitals, tmp_path):
    own_data(tmp_path / "server.npz", [0, 1, 2, 3], test=[3, 2, 1, 0, 0])
    built = hospitals(dataset=str(tmp_path / "server.npz"), evaluate="both")
    built.run()
    assert [(r["clients"], r["failures"]) for r in built.rows] == [("3", "0")] * 2
    assert all(float(row["accuracy"]) % 20 == 0 for row in built.rows)  # of five images
    assert len(diagnostics(built, "accuracy_clients")) == 2
    assert sum(held.train for held in built.strategy.clients.admitted.values()) == sum(
        map(len, HOSPITALS)
    ) - sum(HELD_OUT)


def test_evaluation_is_traffic_and_time(hospitals):
    built, without = (
        hospitals(num_server_rounds=1),
        hospitals(num_server_rounds=1, evaluate="none", run_name="none"),
    )
    built.run()
    without.run()
    model = sum(t.numel() * t.element_size() for t in built.strategy.global_model.values())
    extra = int(built.rows[0]["bytes_down"]) - int(without.rows[0]["bytes_down"])
    assert 3 * model <= extra < 3.1 * model
    assert float(built.rows[0]["seconds_evaluate"]) > 0
