"""Nodes keep a part of their own images for validation, and it chooses the round."""

import pytest
from helpers import identical, read_csv, read_json
from safetensors.torch import load_file

from fedadb_app.runs.checkpoint import Checkpoint
from fedadb_app.runs.summary import in_words, read_summary
from strategies.outcome import EarlyStop, Outcome

KEPT = {100: 8, 101: 6, 102: 2}
"""A fourth of what each hospital of own_data_cases has left after its held-out images."""


def scripted(built, right):
    """Let node 100 find right[t - 1] of its eight validation images in round t, the others one."""

    def of(node):
        def fault(message, reply):
            number = message.content["config"]["round"]
            found = right[number - 1] if node == 100 else 1
            reply.content["metrics"]["val-num-correct"] = found
            return [reply]

        return fault

    built.grid.evaluate_faults = {node: of(node) for node in KEPT}


@pytest.fixture
def validating(hospitals):
    """The three hospitals; validation chooses by accuracy."""

    def build(**changes):
        values = {"validation": "0.25", "select_by": "val-accuracy", "snapshot_every": 1}
        return hospitals(**{**values, **changes})

    return build


def test_the_nodes_images_choose_the_round(validating):
    built = validating(num_server_rounds=3)
    scripted(built, [2, 6, 6])
    built.run()
    built.strategy.outcome.write()
    run = built.folder.path
    kept = load_file(run / "snapshots" / "round0002" / "model.safetensors")
    assert identical(load_file(run / "best.safetensors"), kept)
    rows = read_csv(run / "metrics.csv")
    found = {(row["round"], row["part"], row["metric"]): row["value"] for row in rows}
    assert [found[str(t), "val", "accuracy"] for t in (1, 2, 3)] == ["25", "50", "50"]
    assert (found["1", "val", "images"], found["1", "val", "sites"]) == ("16", "3")
    chosen = read_json(run / "summary.json")["selection"]["chosen"]
    assert (chosen["by"], chosen["round"], chosen["value"]) == ("val-accuracy", 2, 50.0)
    assert chosen["part"] == "clients"
    assert chosen["test"]["accuracy"] == float(found["2", "clients", "accuracy"])
    assert "round 2 " in in_words(read_summary(run))
    assert not (run / "predictions.npz").exists()  # these would be of single images


def test_nobody_trains_on_them_and_everybody_says_how_many_they_are(validating):
    built = validating()
    built.run()
    clients = read_json(built.folder.path / "partition.json")["clients"]
    assert {client["client"]: client["validation"] for client in clients} == KEPT
    trained = {m.metadata.src_node_id: m.content["metrics"]["num-examples"]
               for m in built.grid.received if m.metadata.message_type == "train"}  # fmt: skip
    assert trained == {100: 24, 101: 18, 102: 8}
    told = {key for m in built.grid.received for key in m.content.get("metrics", {})}
    assert {key for key in told if key.startswith("val-")} == {
        *("val-num-examples", "val-num-correct", "val-loss")
    }  # of fewer than ten images no mean


def test_patience_counts_the_nodes_rounds(validating):
    built = validating(num_server_rounds=9, patience=2)
    scripted(built, [6, 5, 4])
    with pytest.raises(EarlyStop, match="no better in 2 evaluated rounds than in round 1"):
        built.run()


def test_a_checkpoint_keeps_the_choice(validating):
    built = validating(num_server_rounds=2, checkpoint_every=1)
    scripted(built, [6, 5])
    built.run()
    said = dict(built.folder.chosen)
    built.folder.chosen = {}
    again = Outcome(built.strategy.run)
    again.resume(Checkpoint.read(built.folder.path))
    assert identical(again.best, built.strategy.outcome.best)
    assert dict(built.folder.chosen) == said


def test_a_node_that_counts_other_images_than_it_keeps_fails(validating, caplog):
    built = validating(num_server_rounds=1)

    def lies(message, reply):
        reply.content["metrics"]["val-num-examples"] = 80
        return [reply]

    built.grid.evaluate_faults[100] = lies
    built.run()
    assert "client 100 failed: num-examples=80, but this client holds 8 samples" in caplog.text


def test_where_nobody_tells_the_metric_nothing_is_chosen(validating, caplog):
    built = validating(select_by="val-auc")
    built.run()
    built.strategy.outcome.write()
    assert "no round could be chosen: auc was never known" in caplog.text
    assert not (built.folder.path / "best.safetensors").exists()
