"""The local SGD loop against one written by hand."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from training_cases import (
    CLASSES,
    SMALL,
    TINY,
    identical,
    lenet,
    linear,
    local_data,
    state_of,
    task,
)

from fedadb_app.config import Settings
from fedadb_app.data.batches import Batch
from fedadb_app.local_training import (
    LocalTask,
    Trainer,
)
from fedadb_app.models.classifier import ImageClassifier


class Recorder(Trainer[Settings]):
    """The plain trainer, keeping what each step saw."""

    def __init__(self, model: ImageClassifier, task: LocalTask) -> None:
        super().__init__(model, task, Settings())
        self.batches: list[Batch] = []
        self.losses: list[float] = []

    def loss(self, batch: Batch) -> Tensor:
        assert self.model.training
        found = super().loss(batch)
        self.batches.append(batch)
        self.losses.append(float(found.detach()))
        return found


def sgd_by_hand(
    model: ImageClassifier, batches: list[Batch], eta: float, momentum: float, decay: float
) -> None:
    """v <- momentum v + (g + decay theta), theta <- theta - eta v; v starts empty."""
    velocity: dict[str, Tensor] = {}
    for batch in batches:
        model.zero_grad()
        rows = batch.indices
        pixels = batch.data.images[batch.data.positions[rows]]
        images = pixels.float() * (1 / 127.5) - 1
        nn.functional.cross_entropy(model(images), batch.data.labels[rows]).backward()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                gradient = parameter.grad.add(parameter, alpha=decay)
                if name in velocity:
                    velocity[name].mul_(momentum).add_(gradient)
                else:
                    velocity[name] = gradient
                parameter.add_(velocity[name], alpha=-eta)


# --- steps and batches ----------------------------------------------------------------------


@pytest.mark.parametrize("samples", [1, 127, 128, 129, 300])
def test_five_epochs_of_ceil_n_over_128_steps(samples):
    trainer = Recorder(linear(), task(local_data(samples)))
    trainer.train()
    per_epoch = math.ceil(samples / 128)
    assert len(trainer.batches) == 5 * per_epoch
    last = samples - 128 * (per_epoch - 1)
    assert [len(b) for b in trainer.batches] == 5 * [*[128] * (per_epoch - 1), last]


def test_every_epoch_is_another_shuffle_of_all_samples():
    trainer = Recorder(linear(), task(local_data(50), local_epochs=3, batch_size=16))
    trainer.train()
    drawn = torch.cat([b.indices for b in trainer.batches]).split(50)
    assert all(sorted(epoch.tolist()) == list(range(50)) for epoch in drawn)
    assert len({tuple(epoch.tolist()) for epoch in drawn}) == 3


def test_batches_depend_on_client_and_round_and_on_nothing_else():
    def batches(client: int, server_round: int) -> list[list[int]]:
        torch.manual_seed(client + 100 * server_round)  # of no account
        trainer = Recorder(linear(), task(local_data(40), server_round, client=client))
        trainer.train()
        return [b.indices.tolist() for b in trainer.batches]

    assert batches(0, 1) == batches(0, 1)
    assert batches(0, 1) != batches(1, 1)
    assert batches(0, 1) != batches(0, 2)


# --- the trajectory -------------------------------------------------------------------------


@pytest.mark.parametrize("make", [linear, lenet])
def test_the_trajectory_is_plain_sgd_bitwise(make):
    data = local_data(23, TINY if make is linear else SMALL)
    settings = {"local_epochs": 2, "batch_size": 8, "momentum": 0.9, "weight_decay": 1e-2}
    model, twin = make(), make()
    trainer = Recorder(model, task(data, **settings))
    trainer.train()
    sgd_by_hand(twin, trainer.batches, 0.1, 0.9, 1e-2)
    assert identical(model.state_dict(), twin.state_dict())
    assert not identical(model.state_dict(), make().state_dict())


def test_momentum_does_not_outlive_the_round():
    data = local_data(23)
    model, twin = linear(), linear()
    for server_round in (1, 2):
        trainer = Recorder(model, task(data, server_round, batch_size=8))
        trainer.train()
        sgd_by_hand(twin, trainer.batches, 0.1, 0.9, 1e-5)  # a new velocity each call
    assert identical(model.state_dict(), twin.state_dict())


def test_without_learning_rate_nothing_moves_after_a_round_with_one():
    data, model = local_data(23), linear()
    Trainer(model, task(data, 1), Settings()).train()
    before = state_of(model)
    Trainer(model, task(data, 2, learning_rate=0.0), Settings()).train()
    assert identical(model.state_dict(), before)


def test_weight_decay_is_added_to_the_gradient_before_momentum():
    class Still(Trainer[Settings]):
        def loss(self, batch: Batch) -> Tensor:
            return 0.0 * self.model(batch.images).sum()

    model = linear()
    nn.init.ones_(model.heads["head"].weight)
    settings = {"local_epochs": 2, "weight_decay": 0.1, "momentum": 0.9}
    Still(model, task(local_data(4), learning_rate=0.5, **settings), Settings()).train()
    # v = 0.1, theta = 0.95; v = 0.09 + 0.095, theta = 0.95 - 0.0925. (Decoupled: 0.9025.)
    expected = torch.full((CLASSES, 4), 0.8575)
    torch.testing.assert_close(model.heads["head"].weight.data, expected, atol=1e-6, rtol=0)


def test_every_parameter_learns_and_running_statistics_follow():
    torch.manual_seed(0)
    features = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(4, 4), nn.ReLU())
    model = ImageClassifier(features, {"head": nn.Linear(4, CLASSES)}).eval()
    before = state_of(model)
    Trainer(model, task(local_data(40), local_epochs=2, batch_size=20), Settings()).train()
    changed = {name for name, t in model.state_dict().items() if not torch.equal(t, before[name])}
    assert changed == set(before)
    assert int(features[0].num_batches_tracked) == 4


# --- hooks and metrics ----------------------------------------------------------------------


def test_train_loss_is_the_mean_over_the_last_epochs_samples():
    class Counting(Trainer[Settings]):
        steps = 0

        def loss(self, batch: Batch) -> Tensor:
            self.steps += 1
            return 0.0 * self.model(batch.images).sum() + self.steps

    settings = {"local_epochs": 2, "batch_size": 2}
    metrics = Counting(linear(), task(local_data(5), **settings), Settings()).train()
    # batches of 2, 2 and 1 samples; the second epoch's losses are 4, 5 and 6
    assert metrics == {"train-loss": pytest.approx((2 * 4 + 2 * 5 + 6) / 5)}


def test_train_loss_of_the_plain_trainer():
    settings = {"local_epochs": 3, "batch_size": 8}
    trainer = Recorder(linear(), task(local_data(20), **settings))
    metrics = trainer.train()
    expected = np.average(trainer.losses[-3:], weights=[8, 8, 4])
    assert metrics["train-loss"] == pytest.approx(expected, rel=1e-6)


def test_begin_sees_the_global_model_and_finish_the_trained_one():
    class Hooks(Trainer[Settings]):
        def begin(self) -> None:
            self.first = state_of(self.model)

        def finish(self) -> dict[str, float]:
            self.last = state_of(self.model)
            return {"own": 2.5}

    model = linear()
    before = state_of(model)
    trainer = Hooks(model, task(local_data(9)), Settings())
    metrics = trainer.train()
    assert identical(trainer.first, before)
    assert identical(trainer.last, model.state_dict())
    assert not identical(trainer.last, before)
    assert metrics["own"] == 2.5
    assert set(metrics) == {"own", "train-loss"}
