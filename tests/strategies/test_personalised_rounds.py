"""After the last round: each site's own model, what it gains, and where it is kept."""

import logging

import pytest
import torch
from helpers import identical, messages_of, read_csv, read_json
from safetensors.torch import load_file

from fedadb_app.client_context import configured_data
from fedadb_app.data.clients import client_data
from fedadb_app.evaluation import evaluate
from fedadb_app.models.classifier import ModelSpec, build_classifier
from strategies.registry import METHODS


@pytest.fixture
def personal(hospitals, tmp_path):
    """Build a federation of three hospitals that personalise: `personal(strategy="fedadb")`."""

    def build(**changes):
        values = {"personalise_epochs": 2, "learning_rate": 0.05, "batch_size": 16}
        values["num_server_rounds"] = 1
        return hospitals(**{**values, "client_state_dir": str(tmp_path / "states"), **changes})

    return build


def rows(built):
    return read_csv(built.folder.path / "personalised.csv")


def personal_folder(tmp_path, node):
    return tmp_path / "states" / "7" / f"client-{node}" / "personalised"


def test_both_heads_of_each_site_before_and_after_by_hand(personal, tmp_path):
    built = personal(strategy="fedadb")
    built.run()
    strategy = built.strategy
    config = strategy.run.config
    model = build_classifier(ModelSpec.of(config, strategy.run.schema), 0, METHODS["fedadb"].heads)
    expected = []
    for node in sorted(built.grid.nodes):
        held = configured_data(built.grid.context(node), config)
        data = client_data(config, held, torch.device("cpu")).held_out
        own = load_file(personal_folder(tmp_path, node) / "model.safetensors")
        counts = {}
        for when, state in (("before", strategy.global_model), ("after", own)):
            model.load_state_dict(state)
            found = evaluate(model, data, config, ["lcb"])
            counts[when] = found.correct.sum(), found.correct_beside["lcb_head"]
        for i, head in enumerate(("agb", "lcb")):
            expected.append((node, head, len(data), counts["before"][i], counts["after"][i]))
    keys = ("site", "head", "images", "correct_before", "correct_after")
    assert [tuple(row[key] for key in keys) for row in rows(built)] == [
        tuple(map(str, row)) for row in expected
    ]
    assert any(row["correct_before"] != row["correct_after"] for row in rows(built))
    told = read_json(built.folder.path / "summary.json")["personalised"]
    assert list(told) == ["agb", "lcb"]
    assert told["agb"]["sites"] == 3


def test_only_the_last_round_asks_and_the_global_model_is_what_it_was(personal):
    two = {"num_server_rounds": 2, "batch_size": 64}
    built, without = personal(**two), personal(**two, personalise_epochs=0, run_name="without")
    for each in (built, without):
        each.run()
    assert identical(built.strategy.global_model, without.strategy.global_model)
    asked = [m for m in built.grid.sent if m.metadata.message_type == "evaluate"]
    heads = [(m.content["config"]["round"], list(m.content["config"]["heads"])) for m in asked]
    assert heads == [(1, [])] * 3 + [(2, ["head"])] * 3
    told = [set(m.content["metrics"]) for m in built.grid.received
            if m.metadata.message_type == "evaluate"]  # fmt: skip
    before = {"num-examples", "num-correct", "loss"}
    assert told == [before] * 3 + [before | {"correct-before", "correct-after"}] * 3
    assert built.rows[1]["accuracy"] == without.rows[1]["accuracy"]
    assert not (without.folder.path / "personalised.csv").exists()
    assert "personalised" not in read_json(without.folder.path / "summary.json")


def test_without_a_local_branch_its_head_is_left_out(personal):
    built = personal(strategy="fedadb", **{"fedadb.use-lcb": False})
    built.run()
    assert {row["head"] for row in rows(built)} == {"agb"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "fedgela" else pytest.mark.slow) for n in METHODS]
)
def test_every_method_can_be_personalised(personal, name):
    """Also one whose head cannot normalise a sample alone, which batches of 31 leave of 32."""
    built = personal(strategy=name, batch_size=31, personalise_epochs=1)
    built.run()
    assert {row["site"] for row in rows(built)} == {"100", "101", "102"}
    assert len(rows(built)) == (6 if name == "fedadb" else 3)


def test_fedbn_is_fine_tuned_from_the_clients_own_model(personal, tmp_path):
    """Before it: the counts with the client's layers, which `num-correct` has as well."""
    built = personal(strategy="fedbn", model="resnet8", personalise_epochs=1, batch_size=64)
    built.run()
    told = {m.metadata.src_node_id: m.content["metrics"] for m in built.grid.received
            if m.metadata.message_type == "evaluate"}  # fmt: skip
    for row in rows(built):
        node = int(row["site"])
        assert int(row["correct_before"]) == told[node]["num-correct"]
        own = load_file(personal_folder(tmp_path, node) / "model.safetensors")
        (kept,) = personal_folder(tmp_path, node).parent.glob("round-*.safetensors")
        tracked = next(n for n in own if n.endswith("num_batches_tracked"))
        assert own[tracked] > load_file(kept)[tracked] > 0


def test_a_site_without_a_usable_model_is_said(personal, caplog):
    built = personal()

    def diverged(message, reply):
        for key in ("correct-before", "correct-after"):
            reply.content["metrics"].pop(key, None)
        return [reply]

    built.grid.evaluate_faults[101] = diverged
    built.run()
    assert {row["site"] for row in rows(built)} == {"100", "102"}
    said = "clients 101 have no personalised model: their training diverged"
    assert said in messages_of(caplog.records, "WARNING")
    assert built.rows[0]["accuracy"]


def test_where_the_model_is_kept_is_in_the_nodes_log_alone(
    personal, federation, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("HOME", str(tmp_path))
    with caplog.at_level(logging.INFO):
        personal(client_state_dir="").run()
    for node in (100, 101, 102):
        folder = tmp_path / "fedadb-runs" / f"personalised-7-client-{node}"
        assert {p.name for p in folder.iterdir()} == {
            *("config.toml", "model.json", "model.safetensors")
        }
        assert f"the personalised model of this node: {folder}" in caplog.text
    parts = {"evaluate": "clients", "personalise-epochs": 1, "run-name": "parts"}
    federation(**parts).run()  # of a public data set: nobody needs them
    assert len(list((tmp_path / "fedadb-runs").iterdir())) == 3


def test_a_disk_that_takes_no_model_costs_no_count(personal, tmp_path, caplog):
    (tmp_path / "states").write_text("a file where a folder should be")
    built = personal()
    built.run()
    assert len(rows(built)) == 3
    assert "the personalised model is lost: " in caplog.text
