"""Whole runs on official data sets: what they are normalised by, and who holds what."""

import pytest
import torch
from helpers import read_csv, read_json, serve
from official_formats import (
    make_cifar,
    make_pacs,
)
from safetensors.torch import load_file
from torch.nn import functional as F

from fedadb_app.config import RunConfig
from fedadb_app.data.clients import PartitionClaim, client_data, server_dataset
from fedadb_app.data.registry import preparation_of
from fedadb_app.models.classifier import ModelSpec, build_classifier
from strategies.registry import METHODS

pytestmark = pytest.mark.usefixtures("home")


def run(home, tmp_path, rounds=2, **values):
    """Run the whole app; return the last anchors."""
    shared = {
        "data-dir": str(home),
        "output-dir": str(tmp_path / "runs"),
        "run-name": "run",
        "num-server-rounds": rounds,
        "local-epochs": 1,
        "augment": True,
        "fedadb.anchor-steps": 2,
    }
    serve(shared | values, clients=4)
    folder = tmp_path / "runs" / "run"
    assert read_json(folder / "summary.json")["status"] == "completed"
    assert [row["failures"] for row in read_csv(folder / "rounds.csv")] == ["0"] * rounds
    return load_file(folder / "anchors.safetensors")["images"]


def test_a_run_on_cifar_keeps_to_its_own_normalisation(home, tmp_path, monkeypatch):
    made, _ = make_cifar(home, monkeypatch)
    images = run(home, tmp_path, dataset="cifar10", model="lenet")
    preparation = preparation_of("cifar10")
    low, high = (bound.flatten() for bound in preparation.valid_range)
    for channel in range(3):  # a standard normal start is cut off on both sides
        assert images[:, channel].min() == low[channel]
        assert images[:, channel].max() == high[channel]
    # The server's evaluation of the last model, by hand.
    model = build_classifier(
        ModelSpec("lenet", "batch", (3, 32, 32), 10), 0, METHODS["fedadb"].heads
    )
    model.load_state_dict(load_file(tmp_path / "runs" / "run" / "model.safetensors"))
    pixels, labels = map(torch.from_numpy, made["test"])
    with torch.no_grad():
        loss = F.cross_entropy(model(preparation.normalise(pixels, torch.device("cpu"))), labels)
    last = read_csv(tmp_path / "runs" / "run" / "rounds.csv")[-1]
    assert float(last["loss"]) == pytest.approx(float(loss), abs=1e-5)


def test_a_clients_images_are_prepared_as_its_data_set_asks(home, monkeypatch):
    made, _ = make_cifar(home, monkeypatch)
    config = RunConfig(dataset="cifar10", data_dir=str(home), evaluate="clients")
    server_dataset(config)
    client = client_data(config, PartitionClaim(0, 2), torch.device("cpu"))
    for part in (client.train, client.held_out):
        pixels = torch.from_numpy(made["train"][0])[part.positions]
        expected = preparation_of("cifar10").normalise(pixels, part.device)
        assert torch.equal(part.load(torch.arange(len(part))), expected)


@pytest.mark.slow
def test_inception_on_the_domains_of_pacs(home, tmp_path):
    make_pacs(home, images=8)
    run(home, tmp_path, 1, dataset="pacs_64", model="googlenet", partition="domain")
    assert [
        sum(count > 0 for count in client["class_counts"])
        for client in read_json(tmp_path / "runs" / "run" / "partition.json")["clients"]
    ] == [2, 2, 2, 2]
