"""FedAvg: the sample-weighted mean, and rounds of it written out."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedadb_app.aggregation import ClientUpdate
from fedadb_app.config import RunConfig
from fedadb_app.data.batches import LocalData
from fedadb_app.local_training import LocalTask, Trainer
from fedadb_app.models.classifier import ImageClassifier, ModelSpec, build_classifier
from strategies.base import ServerRun
from strategies.fedavg import METHOD, FedAvg, FedAvgParams
from strategies.registry import METHODS

CLASSES, SHAPE = 4, (1, 16, 16)
CPU = torch.device("cpu")
NOT_NEEDED: Any = None
CONFIG = RunConfig(strategy="fedavg", local_epochs=2, batch_size=8, learning_rate=0.1)


def lenet() -> ImageClassifier:
    return build_classifier(ModelSpec("lenet", "batch", SHAPE, CLASSES), CONFIG.seed, METHOD.heads)


def server(model: ImageClassifier) -> FedAvg[FedAvgParams]:
    run = ServerRun(CONFIG, model, NOT_NEEDED, NOT_NEEDED, NOT_NEEDED, NOT_NEEDED)
    return FedAvg(run, roster=NOT_NEEDED, params=FedAvgParams())


def local_data(samples: int, seed: int = 0) -> LocalData:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (samples, *SHAPE), dtype=np.uint8)
    labels = rng.integers(0, CLASSES, samples, dtype=np.int64)
    return LocalData.from_arrays(images, labels, np.arange(samples), CLASSES, CPU)


def train(
    start: dict[str, Tensor], data: LocalData, client: int, t: int, eta: float
) -> ClientUpdate:
    model = lenet()
    model.load_state_dict(start)
    task = LocalTask(client, t, 3, eta, CONFIG, data)
    metrics = Trainer(model, task, FedAvgParams()).train()
    return ClientUpdate(client, model.state_dict(), len(data), metrics)


def test_two_clients_with_30_and_10_samples_mix_three_to_one():
    strategy = server(lenet())
    updates = [
        ClientUpdate(i, {"w": torch.full((2, 2), value)}, n)
        for i, (value, n) in enumerate([(1.0, 30), (-3.0, 10)])
    ]
    mean = strategy.update(1, updates)
    torch.testing.assert_close(mean["w"], torch.zeros(2, 2), atol=1e-7, rtol=0)
    swapped = [ClientUpdate(u.client, u.arrays, n) for u, n in zip(updates, (10, 30), strict=True)]
    torch.testing.assert_close(
        strategy.update(1, swapped)["w"], torch.full((2, 2), -2.0), atol=1e-7, rtol=0
    )


def test_one_participant_becomes_the_global_model_bit_by_bit():
    strategy = server(lenet())
    update = train(strategy.global_model, local_data(20), 0, 1, 0.1)
    new = strategy.update(1, [update])
    assert new.keys() == update.arrays.keys()
    assert all(torch.equal(new[name], tensor) for name, tensor in update.arrays.items())
    assert not any(torch.equal(new[name], strategy.global_model[name]) for name in new)


def test_running_statistics_are_averaged_with_the_same_weights():
    torch.manual_seed(0)
    models = []
    for count, scale in ((7, 1.0), (4, 5.0)):
        layer = nn.BatchNorm2d(3)
        for _ in range(count):
            layer(scale * torch.rand(4, 3, 2, 2))
        models.append(layer.state_dict())
    updates = [ClientUpdate(i, m, n) for i, (m, n) in enumerate(zip(models, (30, 10), strict=True))]
    mean = server(lenet()).update(1, updates)
    for name in ("running_mean", "running_var"):
        expected = 0.75 * models[0][name].double() + 0.25 * models[1][name].double()
        torch.testing.assert_close(mean[name], expected.float(), atol=1e-6, rtol=0)
    assert mean["num_batches_tracked"].dtype == torch.int64
    assert int(mean["num_batches_tracked"]) == 6  # 6.25


def test_two_rounds_are_the_equation():
    """theta^t = sum_k p_k theta_k, each theta_k trained from theta^(t-1)."""
    parts = {0: local_data(24, 1), 1: local_data(8, 2)}
    strategy = server(lenet())
    theta = lenet().state_dict()
    for t in (1, 2):
        updates = [train(strategy.global_model, data, k, t, 0.1) for k, data in parts.items()]
        strategy.global_model = strategy.update(t, updates)
        mine = [train(theta, data, k, t, 0.1).arrays for k, data in parts.items()]
        theta = {name: 0.75 * mine[0][name] + 0.25 * mine[1][name] for name in theta}
    for name, tensor in theta.items():
        torch.testing.assert_close(strategy.global_model[name], tensor, atol=1e-6, rtol=0)


def test_a_second_round_without_learning_rate_changes_nothing():
    parts = {0: local_data(24, 1), 1: local_data(8, 2)}
    strategy = server(lenet())
    for t, eta in ((1, 0.1), (2, 0.0)):
        before = strategy.global_model
        updates = [train(before, data, k, t, eta) for k, data in parts.items()]
        strategy.global_model = strategy.update(t, updates)
    assert all(torch.equal(before[name], tensor) for name, tensor in strategy.global_model.items())


def test_the_plain_method():
    strategy = server(lenet())
    assert METHODS["fedavg"] is METHOD
    assert METHOD.trainer is Trainer
    assert FedAvgParams.defaults() == {}
    assert list(lenet().heads) == ["head"]
    assert strategy.attachments(1) == {}
    assert strategy.broadcast_model(1) is strategy.global_model
    assert strategy.evaluated_model() is strategy.global_model


@pytest.mark.parametrize("rounds", [1, 2, 100])
def test_learning_rate_of_a_round(rounds):
    config = RunConfig(learning_rate=0.01, learning_rate_decay=0.99)
    assert config.learning_rate_at(rounds) == pytest.approx(0.01 * 0.99 ** (rounds - 1), rel=1e-12)
