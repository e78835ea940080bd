"""What clients may hold, and with which layers: every method trains on it and stays finite."""

import numpy as np
import pytest
import torch
from contract.settings import QUICK, SMALL_RESNET, every_method, telling_methods
from helpers import Federation, federation_of_nodes, make_federation, own_data

from fedadb_app.data.sources import open_dataset


def assert_trained(federation: Federation, rounds: int = 2) -> None:
    """No client failed, no value became infinite, no variance negative."""
    clients = str(len(federation.grid.nodes))
    assert [(r["clients"], r["failures"]) for r in federation.rows] == [(clients, "0")] * rounds
    for name, tensor in federation.strategy.global_model.items():
        assert torch.isfinite(tensor).all(), name
        assert "running_var" not in name or (tensor >= 0).all()


@every_method
def test_works_with_one_client(finished, name):
    assert_trained(finished(name, clients=1))


@telling_methods
@pytest.mark.parametrize("norm", ["batch", "batch-local", "group"])
def test_works_with_normalisation_layers(finished, name, norm):
    assert_trained(finished(name, clients=1, model=SMALL_RESNET, norm=norm))


@pytest.mark.slow
@telling_methods
def test_works_with_the_network_of_the_paper(finished, name):
    f = finished(name, clients=1, model="resnet18", num_server_rounds=1, batch_size=64)
    assert_trained(f, rounds=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedadb", "fedgela", "feddecorr", "moon"])
def test_works_with_a_librarys_net(finished, name):
    """Images enlarged before it, anchors through both; the methods that look at its features."""
    f = finished(
        name, clients=1, model="torchvision:shufflenet_v2_x0_5", norm="group", num_server_rounds=1
    )
    assert_trained(f, rounds=1)


@every_method
def test_works_with_a_client_of_one_class(finished, colour_images, name):
    f = finished(name, alpha=1e-3)
    labels = open_dataset(colour_images, "").train_labels
    held = [len(np.unique(labels[part])) for part in f.strategy.run.partition.indices]
    assert 1 in held, "the partition was meant to give some client one class only"
    assert_trained(f)


HOSPITALS = {
    "one": [[0, 1, 2] * 4],
    "two": [[0, 1, 2] * 4, [2, 2, 0] * 3],
    "one image among others": [[0, 1, 2] * 4, [1]],
    "one image alone": [[1]],
    "one class": [[0, 1, 2] * 4, [2] * 9],
}


@telling_methods
@pytest.mark.parametrize("labels", HOSPITALS.values(), ids=HOSPITALS)
def test_works_with_hospitals_that_hold_their_own_images(tmp_path, name, labels):
    nodes = {100 + k: own_data(tmp_path / f"{k}.npz", y, seed=k) for k, y in enumerate(labels)}
    values = {**QUICK, **federation_of_nodes(3), "strategy": name, "model": "lenet"}
    f = make_federation({**values, "output-dir": str(tmp_path / "runs")}, nodes=nodes)
    f.run()
    assert_trained(f)
    assert all((r["accuracy"] != "") == (labels != [[1]]) for r in f.rows)


@telling_methods
def test_works_with_a_single_image_and_batch_statistics(tmp_path, name):
    nodes = {1: own_data(tmp_path / "1.npz", [0, 1, 2] * 2), 2: own_data(tmp_path / "2.npz", [1])}
    values = {**QUICK, **federation_of_nodes(3), "strategy": name, "model": SMALL_RESNET}
    values |= {"num-server-rounds": 1, "output-dir": str(tmp_path / "runs")}
    f = make_federation(values, nodes=nodes)
    f.run()
    assert_trained(f, rounds=1)
