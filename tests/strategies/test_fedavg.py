"""FedAvg: the sample-weighted mean, and rounds of it written out."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedadb_app.aggregation import ClientUpdate
from fedadb_app.config import RunConfig
from fedadb_app.data.batches import LocalData
from fedadb_app.local_training import LocalTask, Trainer
from fedadb_app.models.classifier import ImageClassifier, ModelSpec, build_classifier
from strategies.fedavg import METHOD, FedAvg, FedAvgParams
from strategies.registry import METHODS
from strategies.server import RoundInputs

CLASSES, SHAPE = 4, (1, 16, 16)
CPU = torch.device("cpu")
HALF = FedAvg(FedAvgParams())
CONFIG = RunConfig(strategy="fedavg", local_epochs=2, batch_size=8, learning_rate=0.1)


def lenet() -> ImageClassifier:
    return build_classifier(ModelSpec("lenet", "batch", SHAPE, CLASSES), CONFIG.seed, METHOD.heads)


def told(model: dict[str, Tensor], t: int = 1) -> RoundInputs:
    return RoundInputs(t, 3, 0.99, 2, 20.0, model, lenet().parameter_names())


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


def average(updates: list[ClientUpdate], model: dict[str, Tensor] | None = None) -> dict:
    """What the half makes of them: nothing but a model."""
    made = HALF.update(told(model or {}), updates)
    assert (made.state, made.diagnostics, made.also_evaluated) == ({}, {}, {})
    assert made.evaluated is None
    return made.model


def test_two_clients_with_30_and_10_samples_mix_three_to_one():
    """p = 3/4 and 1/4: 3/4 * 1 + 1/4 * (-3) = 0; the other way round 1/4 - 9/4 = -2."""
    updates = [
        ClientUpdate(i, {"w": torch.full((2, 2), value)}, n)
        for i, (value, n) in enumerate([(1.0, 30), (-3.0, 10)])
    ]
    torch.testing.assert_close(average(updates)["w"], torch.zeros(2, 2), atol=1e-7, rtol=0)
    swapped = [ClientUpdate(u.client, u.arrays, n) for u, n in zip(updates, (10, 30), strict=True)]
    expected = torch.full((2, 2), -2.0)
    torch.testing.assert_close(average(swapped)["w"], expected, atol=1e-7, rtol=0)


def test_one_participant_becomes_the_global_model_bit_by_bit():
    start = lenet().state_dict()
    update = train(start, local_data(20), 0, 1, 0.1)
    new = average([update], start)
    assert new.keys() == update.arrays.keys()
    assert all(torch.equal(new[name], tensor) for name, tensor in update.arrays.items())
    assert not any(torch.equal(new[name], start[name]) for name in new)


def test_running_statistics_are_averaged_with_the_same_weights():
    torch.manual_seed(0)
    models = []
    for count, scale in ((7, 1.0), (4, 5.0)):
        layer = nn.BatchNorm2d(3)
        for _ in range(count):
            layer(scale * torch.rand(4, 3, 2, 2))
        models.append(layer.state_dict())
    updates = [ClientUpdate(i, m, n) for i, (m, n) in enumerate(zip(models, (30, 10), strict=True))]
    mean = average(updates)
    for name in ("running_mean", "running_var"):
        expected = 0.75 * models[0][name].double() + 0.25 * models[1][name].double()
        torch.testing.assert_close(mean[name], expected.float(), atol=1e-6, rtol=0)
    assert mean["num_batches_tracked"].dtype == torch.int64
    assert int(mean["num_batches_tracked"]) == 6  # 6.25


def test_two_rounds_are_the_equation():
    """theta^t = sum_k p_k theta_k, each theta_k trained from theta^(t-1)."""
    parts = {0: local_data(24, 1), 1: local_data(8, 2)}
    ours = theta = lenet().state_dict()
    for t in (1, 2):
        ours = average([train(ours, data, k, t, 0.1) for k, data in parts.items()], ours)
        mine = [train(theta, data, k, t, 0.1).arrays for k, data in parts.items()]
        theta = {name: 0.75 * mine[0][name] + 0.25 * mine[1][name] for name in theta}
    for name, tensor in theta.items():
        torch.testing.assert_close(ours[name], tensor, atol=1e-6, rtol=0)


def test_a_second_round_without_learning_rate_changes_nothing():
    parts = {0: local_data(24, 1), 1: local_data(8, 2)}
    model = lenet().state_dict()
    for t, eta in ((1, 0.1), (2, 0.0)):
        before = model
        model = average([train(before, data, k, t, eta) for k, data in parts.items()], before)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.items())


def test_the_plain_method():
    assert METHODS["fedavg"] is METHOD
    assert METHOD.trainer is Trainer
    assert METHOD.server is FedAvg
    assert FedAvgParams.defaults() == {}
    assert list(lenet().heads) == ["head"]
    model = lenet().state_dict()
    sent = HALF.broadcast(told(model))
    assert sent.model is model
    assert (sent.attachments, sent.artifacts, sent.diagnostics) == ({}, {}, {})


@pytest.mark.parametrize("rounds", [1, 2, 100])
def test_learning_rate_of_a_round(rounds):
    config = RunConfig(learning_rate=0.01, learning_rate_decay=0.99)
    assert config.learning_rate_at(rounds) == pytest.approx(0.01 * 0.99 ** (rounds - 1), rel=1e-12)
