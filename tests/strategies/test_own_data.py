"""Nodes with their own data: whose claims count, who evaluates, and what never leaves a node."""

import logging

import numpy as np
import pytest
import torch
from fake_grid import FakeGrid, server_context
from faults import edited, fails, first, silent
from helpers import federation_of_nodes, identical, messages_of, own_data, read_csv, read_json

import server_app
from fedadb_app import messages
from fedadb_app.aggregation import weighted_mean
from fedadb_app.client_context import configured_data
from fedadb_app.data.clients import client_data
from fedadb_app.errors import TrainingError
from fedadb_app.evaluation import evaluate
from fedadb_app.models.classifier import ModelSpec, build_classifier
from fedadb_app.privacy import epsilon_spent

HOSPITALS = ([0, 1, 2, 3] * 10, [0] * 25 + [1] * 5, [3] * 12)
"""Labels of three skewed nodes; a fifth of each class is held out: 8 + 6 + 2 samples."""

HELD_OUT = (8, 6, 2)


@pytest.fixture
def nodes(tmp_path):
    """Node id -> node config of the three hospitals."""
    return {
        100 + k: own_data(tmp_path / f"hospital-{k}.npz", labels, seed=k)
        for k, labels in enumerate(HOSPITALS)
    }


@pytest.fixture
def hospitals(federation, nodes):
    """Build a federation of them: `hospitals(strategy="feddyn")`."""

    def build(**changes):
        named = {key.replace("_", "-"): value for key, value in changes.items()}
        return federation(nodes=dict(nodes), **{**federation_of_nodes(), "model": "lenet", **named})

    return build


def diagnostics(built, name: str) -> list[float]:
    rows = read_csv(built.folder.path / "diagnostics.csv")
    return [float(row["value"]) for row in rows if row["name"] == name]


def in_round(built, server_round: int, action) -> None:
    """Do something when a round's instructions go out."""
    built.grid.before_train = lambda t: action() if t == server_round else None


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


def answers(correct: int, loss: float):
    """A fault: this client's counts, whatever it found."""
    return edited(metrics=lambda m: {**m, "num-correct": correct, "loss": loss})


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
    assert built.strategy.clients.num_examples == sum(map(len, HOSPITALS)) - sum(HELD_OUT)


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


# --- whose claims count ---------------------------------------------------------------------


@pytest.mark.parametrize("claimed", [31, 33, 10**9, 0])
def test_a_client_must_claim_what_it_stated(hospitals, caplog, claimed):
    """It held 32 training samples when it was asked."""
    built = hospitals(num_server_rounds=1)
    built.grid.faults[100] = edited(metrics=lambda m: {**m, "num-examples": claimed})
    built.run()
    assert (built.rows[0]["clients"], built.rows[0]["failures"]) == ("2", "1")
    (said,) = messages_of(caplog.records, "WARNING")
    assert f"client 100 failed: num-examples={claimed}, but this client holds 32" in said
    assert "left out until it has answered anew" in said


def test_data_that_grow_during_a_run_are_taken_with_their_new_size(
    hospitals, tmp_path, clock, caplog
):
    built = hospitals(num_server_rounds=3)
    in_round(built, 2, lambda: own_data(tmp_path / "hospital-0.npz", [0, 1, 2, 3] * 20, seed=5))
    clock.now += 60
    built.run()
    assert [(r["clients"], r["failures"]) for r in built.rows] == [
        ("3", "0"),
        ("2", "1"),
        ("3", "0"),
    ]
    assert built.strategy.clients.counts[100].train == 64
    assert read_json(built.folder.path / "partition.json")["clients"][0]["size"] == 64


def test_data_that_break_during_a_run_and_are_mended(hospitals, tmp_path, clock, caplog):
    built = hospitals(num_server_rounds=5)
    file = tmp_path / "hospital-0.npz"

    def happen(t: int) -> None:
        clock.now += 60
        if t == 2:
            file.rename(tmp_path / "away.npz")
        if t == 4:
            (tmp_path / "away.npz").rename(file)

    built.grid.before_train = happen
    built.run()
    assert [(r["clients"], r["failures"]) for r in built.rows] == [
        ("3", "0"),
        ("2", "1"),  # drawn, refused
        ("2", "0"),  # not drawn
        ("2", "0"),
        ("3", "0"),
    ]
    said = messages_of(caplog.records, "WARNING")
    assert len(said) == 1
    assert "round 2: client 100 failed: its data cannot be used; its own log says why" in said[0]
    assert clock.naps == 0


def test_a_node_that_is_refused_is_named_and_the_others_go_on(federation, nodes, caplog):
    nodes[100] = {"data-path": "/nowhere/at/all"}
    built = federation(nodes=nodes, **federation_of_nodes(), **{"num-server-rounds": 1})
    built.run()
    assert (built.rows[0]["clients"], built.rows[0]["failures"]) == ("2", "0")
    (said,) = messages_of(caplog.records, "WARNING")
    assert said == "node 100 is left out: its data cannot be used; its own log says why"


def test_a_late_joiner_stands_in_the_manifest(hospitals, tmp_path):
    built = hospitals(num_server_rounds=2)
    late = own_data(tmp_path / "late.npz", [0, 1] * 5)
    in_round(built, 1, lambda: built.grid.nodes.update({200: late}) or built.grid.nodes.pop(102))
    built.run()
    clients = read_json(built.folder.path / "partition.json")["clients"]
    assert [c["client"] for c in clients] == [100, 101, 102, 200]  # whoever took part


# --- an absurd update -----------------------------------------------------------------------


def add(number: float):
    return edited(first(lambda a: a + np.float32(number)))


def test_an_absurd_update_is_refused_and_named(hospitals, caplog):
    """By default; the round is then as if that client had stayed silent."""
    honest, built = hospitals(run_name="honest"), hospitals()
    honest.grid.faults[101], built.grid.faults[101] = silent, add(10_000)
    honest.run()
    caplog.clear()
    built.run()
    assert [(r["clients"], r["failures"]) for r in built.rows] == [("2", "1")] * 2
    assert identical(built.strategy.global_model, honest.strategy.global_model)
    said = messages_of(caplog.records, "WARNING")[0]
    assert "client 101 failed: its update has the norm " in said
    assert "more than 100 times that of what it was sent" in said
    assert said.endswith("(max-relative-update=100)")


def test_absurd_running_statistics_are_refused_and_large_ones_are_not(hospitals, caplog):
    """A variance is a square: c^2 counts."""

    def grown(factor):
        return edited(
            lambda arrays: {n: a * factor if "running_var" in n else a for n, a in arrays.items()}
        )

    built = hospitals(strategy="fedgela", num_server_rounds=1)
    built.grid.faults |= {100: grown(50.0), 101: grown(1e12)}
    built.run()
    assert (built.rows[0]["clients"], built.rows[0]["failures"]) == ("2", "1")
    said = messages_of(caplog.records, "WARNING")[0]
    assert "client 101 failed: its change of running statistics has the norm " in said
    assert "more than 10000 times that of what it was sent" in said


def test_without_the_rule_it_is_taken(hospitals):
    built = hospitals(num_server_rounds=1, max_relative_update=0.0)
    built.grid.faults[101] = add(10_000)
    built.run()
    assert built.rows[0]["failures"] == "0"
    assert max(t.abs().max() for t in built.strategy.global_model.values()) > 100


@pytest.mark.parametrize("alone", [False, True])
def test_the_rule_needs_no_majority(federation, nodes, alone):
    """One or two hospitals can not say what is usual."""
    for node in (100, 102) if alone else (102,):
        del nodes[node]
    built = federation(nodes=nodes, **federation_of_nodes(), **{"num-server-rounds": 1})
    built.grid.faults[101] = add(10_000)
    if alone:
        with pytest.raises(TrainingError, match=r"0 of 1 clients .*max-relative-update"):
            built.run()
    else:
        built.run()
        assert (built.rows[0]["clients"], built.rows[0]["failures"]) == ("1", "1")


def test_the_bound_by_hand(hospitals):
    """||theta_k - theta_sent|| = c ||theta_sent|| is allowed, a little more is not."""
    built = hospitals(num_server_rounds=1, max_relative_update=2.0)
    for node, factor in zip(built.grid.nodes, (2.99, 3.01, -0.99), strict=True):
        scaled = {n: factor * t.numpy() for n, t in built.strategy.global_model.items()}
        built.grid.faults[node] = edited(lambda arrays, scaled=scaled: scaled)
    built.run()
    assert (built.rows[0]["clients"], built.rows[0]["failures"]) == ("2", "1")


def test_absurd_statistics_of_batches_count_too(federation, tmp_path):
    nodes = {k: own_data(tmp_path / f"{k}.npz", [0, 1, 2] * 2, seed=k) for k in (1, 2)}
    values = {"num-server-rounds": 1, "model": "resnet18"}
    built = federation(nodes=nodes, **federation_of_nodes(), **values)
    name = next(n for n in built.strategy.global_model if n.endswith("running_mean"))
    built.grid.faults[2] = edited(lambda arrays: {**arrays, name: arrays[name] + 1e6})
    built.run()
    assert (built.rows[0]["clients"], built.rows[0]["failures"]) == ("1", "1")


def test_an_update_is_measured_from_the_model_that_was_sent(hospitals):
    """FedACG sends a look-ahead model; clients that send it back have not moved at all."""
    built = hospitals(strategy="fedacg")
    sent = {}

    def echo(asked, reply):
        sent["arrays"] = asked.content["arrays"]
        back = {name: array.numpy() for name, array in asked.content["arrays"].items()}
        return edited(lambda arrays: back)(asked, reply)

    def stand_still() -> None:
        built.grid.faults = dict.fromkeys(built.grid.nodes, echo)
        run = built.strategy.run
        run.config = run.config.model_copy(update={"max_relative_update": 1e-9})

    before = {}
    in_round(built, 2, lambda: before.update(built.strategy.global_model) or stand_still())
    built.run()
    assert [row["failures"] for row in built.rows] == ["0", "0"]
    assert not identical(messages.to_state_dict(sent["arrays"]), before)


# --- equal weights to equal claims ----------------------------------------------------------


def test_the_model_is_the_mean_by_stated_samples(hospitals):
    built = hospitals(num_server_rounds=1)
    built.run()
    received = [m for m in built.grid.received if m.metadata.message_type == "train"]
    models = [messages.to_state_dict(m.content["arrays"]) for m in received]
    sizes = [len(labels) - out for labels, out in zip(HOSPITALS, HELD_OUT, strict=True)]
    expected = weighted_mean(models, [n / sum(sizes) for n in sizes])
    assert identical(built.strategy.global_model, expected)


# --- what is known of nodes when ids change ---------------------------------------------------


def test_a_node_that_outweighs_all_others_is_named(federation, tmp_path, caplog):
    sizes = {100: 6, 101: 6, 102: 40}
    nodes = {n: own_data(tmp_path / f"{n}.npz", [0, 1] * (size // 2)) for n, size in sizes.items()}
    own = {**federation_of_nodes(), "evaluate": "none", "num-server-rounds": 1}
    federation(nodes=nodes, **own).run()
    said = messages_of(caplog.records, "WARNING")
    assert said == ["node 102 takes part with 40 samples, 77 % of all"]


@pytest.mark.parametrize("same", [True, False])
def test_a_resumed_run_knows_the_nodes_of_the_run_before(values, nodes, tmp_path, caplog, same):
    own = {**values, **federation_of_nodes(), "num-server-rounds": 3, "checkpoint-every": 1}

    def interrupt() -> None:
        raise KeyboardInterrupt

    grid = FakeGrid(own, dict(nodes))
    grid.before_train = lambda t: t == 3 and interrupt()
    with pytest.raises(KeyboardInterrupt):
        server_app.app(grid, server_context(own))
    if not same:
        nodes[200] = nodes.pop(102)
        nodes[101] = own_data(tmp_path / "more.npz", [0, 1] * 10)
    caplog.clear()
    before = f"{own['output-dir']}/run"
    next_run = {**own, "run-name": "next", "resume-from": before}
    server_app.app(FakeGrid(next_run, nodes), server_context(next_run, 8))

    said = [w for w in messages_of(caplog.records, "WARNING") if w.startswith("resume-from")]
    named = f'resume-from="{before}": nodes'
    assert said == (
        []
        if same
        else [
            f"{named} not connected now, or under another id: 102",
            f"{named} not of that run, or under another id: 200",
            f"{named} holding another number of samples than in that run: 101",
        ]
    )
    folder = tmp_path / "runs" / "next"
    known = [client["client"] for client in read_json(folder / "partition.json")["clients"]]
    assert known == ([100, 101, 102] if same else [100, 101, 102, 200])
    assert read_json(folder / "summary.json")["clients"] == len(known)


def test_every_round_costs_privacy_where_a_node_may_return_under_another_id(hospitals):
    """Drawn in one round each by its id, a hospital of two ids was drawn in both."""
    private = {"privacy": "central", "clipping_norm": 0.01, "evaluate": "none"}
    built = hospitals(fraction_train=0.3, **private)
    built.run()
    assert len(set(built.strategy.clients.ledger.rounds_drawn)) == 2
    for t, row in enumerate(built.rows, start=1):
        assert float(row["epsilon"]) == pytest.approx(
            epsilon_spent(built.strategy.run.config, t), 1e-4
        )


@pytest.mark.parametrize(("size", "failures"), [(1.0, "0"), (1e6, "1")])
def test_with_local_noise_the_absurd_is_what_noise_cannot_be(hospitals, size, failures):
    built = hospitals(num_server_rounds=1, privacy="local", clipping_norm=1e-3, evaluate="none")
    built.grid.faults[101] = edited(
        lambda arrays: {n: a + np.float32(size * 1e-6) for n, a in arrays.items()}
    )
    built.run()
    assert built.rows[0]["failures"] == failures
