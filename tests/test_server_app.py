"""The server app's `main`, called as Flower calls it, on a fake grid of real clients."""

import csv
import logging
import tomllib

import numpy as np
import pytest
import torch
from fake_grid import FakeGrid, node_id, server_context, simulated_nodes
from faults import silent
from helpers import identical, read_csv, read_json
from safetensors.torch import load_file

import server_app
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import ConfigError, DataError, NodeError, TrainingError
from fedadb_app.metrics import metrics_of
from fedadb_app.runs.predictions import Predictions
from fedadb_app.runs.reader import read_files
from fedadb_app.runs.record import RoundRecord
from fedadb_app.runs.summary import selection_summary
from strategies.registry import METHODS


def run(values, clients: int = 2) -> FakeGrid:
    grid = FakeGrid(values, simulated_nodes(clients))
    server_app.app(grid, server_context(values))
    return grid


@pytest.fixture
def folder(values, tmp_path):
    return tmp_path / "runs" / "run"


# --- a run that goes well -------------------------------------------------------------------


def test_fedadb_on_digits_leaves_a_complete_folder(values, folder):
    values |= {"strategy": "fedadb", "dataset": "digits", "num-server-rounds": 1}
    values |= {"partition": "dirichlet", "alpha": 0.3}
    grid = run(values)
    dataset = open_dataset("digits", "")

    assert {path.name for path in folder.iterdir()} == {
        "config.toml",
        "partition.json",
        "rounds.csv",
        "class_accuracy.csv",
        "diagnostics.csv",
        "metrics.csv",
        "confusion.csv",
        "predictions.npz",
        "summary.json",
        "model.json",
        "model.safetensors",
        "anchors.safetensors",
    }

    found = read_json(folder / "summary.json")
    (row,) = read_csv(folder / "rounds.csv")
    assert found.pop("seconds") > 0
    accuracy = float(row["accuracy"])
    assert found == {
        "status": "completed",
        "rounds": 1,
        "final_accuracy": accuracy,
        "best5_accuracy": accuracy,
        "last50_accuracy": accuracy,
        "selection": selection_summary({}),
        "strategy": "fedadb",
        "dataset": "digits",
        "alpha": 0.3,
        "clients": 2,
        "seed": 0,
        "data": open_dataset("digits", "").digest,
    }

    assert list(row) == RoundRecord.header()
    assert [column for column, cell in row.items() if not cell] == ["epsilon"]
    assert (row["clients"], row["failures"], row["learning_rate"]) == ("2", "0", "0.01")
    assert 0 < float(row["anchor_quality"]) <= 1

    (classes,) = read_csv(folder / "class_accuracy.csv")
    assert list(classes) == ["round", *dataset.class_names]
    # The whole test set: the accuracies of the classes, weighted by their sizes, are the accuracy.
    counts = [int((dataset.test_labels == c).sum()) for c in range(10)]
    shares = [float(classes[name]) for name in dataset.class_names]
    weighted = sum(n * a for n, a in zip(counts, shares, strict=True)) / sum(counts)
    assert weighted == pytest.approx(accuracy, abs=0.02)

    # All that is said of the model follows from the probabilities that are kept.
    kept = Predictions.read(folder)
    assert kept.final_round == 1
    assert np.array_equal(kept.labels, dataset.test_labels)
    measured = read_files(folder).metric
    for name, value in metrics_of(kept.labels, kept.final).whole.items():
        assert measured("test", name) == {1: pytest.approx(value, rel=1e-5)}, name
    assert measured("test", "accuracy")[1] == pytest.approx(accuracy, abs=0.005)
    counts_given = [int(row["count"]) for row in read_csv(folder / "confusion.csv")]
    assert counts_given == metrics_of(kept.labels, kept.final).confusion.ravel().tolist()

    config = tomllib.loads((folder / "config.toml").read_text())
    assert config["strategy"] == "fedadb"
    assert config["alpha"] == 0.3
    assert config["batch-size"] == values["batch-size"]
    assert config["momentum"] == 0.9
    assert config["fedadb"]["anchor-steps"] == values["fedadb.anchor-steps"]
    assert set(config["fedadb"]) == set(METHODS["fedadb"].params.defaults())

    partition = read_json(folder / "partition.json")
    assert sum(client["size"] for client in partition["clients"]) == len(dataset.train_labels)
    trained = [m for m in grid.received if m.metadata.message_type == "train"]
    assert [m.content["metrics"]["num-examples"] for m in trained] == [
        partition["clients"][grid.nodes[m.metadata.src_node_id]["partition-id"]]["size"]
        for m in trained
    ]

    model = load_file(folder / "model.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in model.values())
    anchors = load_file(folder / "anchors.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in anchors.items()} == {
        "images": (10, 1, 28, 28),
        "labels": (10,),
        "confidences": (10,),
    }


def test_fedavg_leaves_no_anchors(values, folder):
    run(values)
    assert (folder / "model.safetensors").exists()
    assert not (folder / "anchors.safetensors").exists()
    assert [row["anchor_quality"] for row in read_csv(folder / "rounds.csv")] == ["", ""]


def test_two_runs_of_one_seed_are_equal(values, folder):
    """Other node ids, another order of replies, another name: the same bits."""
    models = []
    for name in ("one", "other"):
        values["run-name"] = name
        nodes = simulated_nodes(3)
        if name == "other":
            nodes = {1000 - i: config for i, config in enumerate(nodes.values())}
        grid = FakeGrid(values, nodes, arrange=list if name == "one" else reversed)
        server_app.app(grid, server_context(values, run_id=len(models)))
        models.append(load_file(folder.parent / name / "model.safetensors"))
    assert identical(*models)


def test_another_seed_is_another_run(values, folder):
    models = []
    for seed in (0, 1):
        run({**values, "seed": seed, "run-name": f"seed{seed}"})
        models.append(load_file(folder.parent / f"seed{seed}" / "model.safetensors"))
    assert not identical(*models)


def test_the_folder_is_announced(values, folder, caplog):
    with caplog.at_level(logging.INFO):
        run(values)
    assert str(folder) in caplog.text


# --- before round 1 -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("strategy", "fedabd"),
        ("learning-rate", "0.1"),
        ("learnig-rate", 0.1),
        ("fedadb.anchor-steps", -1),
        ("output-dir", "runs"),
        ("device", "cuda:99"),
    ],
)
def test_a_wrong_configuration_leaves_no_trace(values, tmp_path, key, value):
    before = set(tmp_path.rglob("*"))
    grid = FakeGrid(values, simulated_nodes(2))
    with pytest.raises(ConfigError, match=key):
        server_app.app(grid, server_context({**values, key: value}))
    assert set(tmp_path.rglob("*")) == before
    assert grid.sent == []


def test_a_finished_run_is_not_overwritten(values, folder):
    run(values)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ConfigError, match="already holds a run"):
        run({**values, "seed": 1})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_more_clients_than_the_data_can_feed(values, folder):
    values["dataset"] = "digits"
    grid = FakeGrid(values, simulated_nodes(200))
    with pytest.raises(DataError, match="200 clients"):
        server_app.app(grid, server_context(values))
    assert grid.trained() == []
    found = read_json(folder / "summary.json")
    assert (found["status"], found["rounds"]) == ("failed", 0)
    assert "200 clients" in found["reason"]
    assert (folder / "rounds.csv").read_text().count("\n") == 1


def test_a_data_set_that_does_not_exist(values, folder, tmp_path):
    values["dataset"] = str(tmp_path / "nowhere.npz")
    with pytest.raises(DataError, match="nowhere"):
        run(values)
    assert read_json(folder / "summary.json")["status"] == "failed"


def test_too_few_nodes(values, folder, clock):
    nodes = simulated_nodes(3)
    del nodes[node_id(1)]
    grid = FakeGrid(values, nodes)
    with pytest.raises(NodeError, match=r"2 SuperNodes.* 3 are needed"):
        server_app.app(grid, server_context({**values, "node-timeout": 1.0}))
    assert grid.trained() == []
    found = read_json(folder / "summary.json")
    assert found["status"] == "failed"
    assert "2 SuperNodes" in found["reason"]


# --- a run that ends early ------------------------------------------------------------------


def test_a_run_that_fails_keeps_its_rounds_and_its_model(values, folder):
    values |= {"num-server-rounds": 3, "strategy": "fedadb"}
    grid = FakeGrid(values, simulated_nodes(2))
    grid.before_train = lambda t: t == 2 and grid.faults.update(dict.fromkeys(grid.nodes, silent))
    with pytest.raises(TrainingError, match="round 2"):
        server_app.app(grid, server_context(values))
    found = read_json(folder / "summary.json")
    assert found["status"] == "failed"
    assert "round 2: 0 of 2" in found["reason"]
    rows = read_csv(folder / "rounds.csv")
    assert [row["round"] for row in rows] == ["1", "2"]
    assert found["final_accuracy"] == float(rows[0]["accuracy"])
    assert (folder / "model.safetensors").exists()
    assert (folder / "anchors.safetensors").exists()

    once = {**values, "num-server-rounds": 3, "run-name": "once"}
    grid = FakeGrid(once, simulated_nodes(2))
    grid.before_train = lambda t: t == 2 and interrupt()
    with pytest.raises(KeyboardInterrupt):
        server_app.app(grid, server_context(once))
    stopped = load_file(folder.parent / "once" / "model.safetensors")
    assert identical(load_file(folder / "model.safetensors"), stopped)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_run_that_is_interrupted(values, folder):
    grid = FakeGrid(values, simulated_nodes(2))
    grid.before_train = lambda t: t == 2 and interrupt()
    with pytest.raises(KeyboardInterrupt):
        server_app.app(grid, server_context(values))
    found = read_json(folder / "summary.json")
    assert (found["status"], found["rounds"]) == ("stopped", 1)
    assert (folder / "model.safetensors").exists()
    with (folder / "rounds.csv").open() as file:
        assert len(list(csv.reader(file))) == 2


def test_nodes_without_data_are_told_how_to_start(values, folder):
    """Deployment without --node-config: said before round 1, and no partition is invented."""
    values["node-timeout"] = 1.0
    grid = FakeGrid(values, {5: {}, 6: {}})
    with pytest.raises(NodeError, match="--node-config"):
        server_app.app(grid, server_context(values))
    assert not (folder / "partition.json").exists()
    assert "--node-config" in read_json(folder / "summary.json")["reason"]
