"""The local SGD loop against one written by hand."""

import copy
import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedadb_app.config import RunConfig, Settings
from fedadb_app.data.batches import Batch, LocalData
from fedadb_app.errors import ConfigError
from fedadb_app.local_training import (
    LocalTask,
    Trainer,
    choose_device,
    frozen_copy,
    perturbed,
)
from fedadb_app.models.classifier import ImageClassifier, ModelSpec, build_classifier

CPU = torch.device("cpu")
CLASSES = 3
TINY, SMALL = (1, 2, 2), (1, 16, 16)


def local_data(samples: int, shape: tuple[int, int, int] = TINY) -> LocalData:
    rng = np.random.default_rng(samples)
    images = rng.integers(0, 256, (samples, *shape), dtype=np.uint8)
    labels = rng.integers(0, CLASSES, samples, dtype=np.int64)
    return LocalData.from_arrays(images, labels, np.arange(samples), CLASSES, CPU)


def linear() -> ImageClassifier:
    torch.manual_seed(4)
    return ImageClassifier(nn.Flatten(), {"head": nn.Linear(4, CLASSES)})


def lenet() -> ImageClassifier:
    return build_classifier(ModelSpec("lenet", "batch", SMALL, CLASSES), seed=1)


def task(
    data: LocalData,
    server_round: int = 1,
    learning_rate: float = 0.1,
    client: int = 0,
    **values: float | int | str,
) -> LocalTask:
    return LocalTask(client, server_round, 10, learning_rate, RunConfig(**values), data)


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


def state_of(model: ImageClassifier) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def identical(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


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


# --- precision ------------------------------------------------------------------------------


def test_bf16_computes_in_bfloat16_and_keeps_float32_weights():
    data = local_data(24, SMALL)
    settings = {"local_epochs": 2, "batch_size": 8}
    runs = {}
    for precision in ("fp32", "bf16"):
        model = lenet()
        seen: list[torch.dtype] = []
        model.heads["head"].register_forward_hook(lambda *args, s=seen: s.append(args[2].dtype))
        metrics = Trainer(model, task(data, precision=precision, **settings), Settings()).train()
        runs[precision] = metrics["train-loss"]
        assert set(seen) == {torch.float32 if precision == "fp32" else torch.bfloat16}
        assert all(p.dtype == torch.float32 for p in model.parameters())
        assert all(torch.isfinite(p).all() for p in model.parameters())
    assert math.isfinite(runs["bf16"])
    assert runs["bf16"] == pytest.approx(runs["fp32"], abs=0.02)
    assert runs["bf16"] != runs["fp32"]


# --- random numbers -------------------------------------------------------------------------


def test_generators_differ_across_clients_rounds_streams_and_seeds():
    tasks = [
        task(local_data(3), server_round, client=client, seed=seed)
        for seed in (0, 1)
        for client in (0, 1, 2, 2**63 + 1)
        for server_round in (1, 2, 3)
    ]
    draws = {
        int(torch.randint(2**62, (), generator=one.generator(stream)))
        for one in tasks
        for stream in ("batches", "agb")
    }
    assert len(draws) == 2 * 4 * 3 * 2


def test_a_generator_starts_afresh_each_time_it_is_asked_for():
    one = task(local_data(3), 4, client=2)
    first = torch.rand(8, generator=one.generator("batches"))
    assert torch.equal(first, torch.rand(8, generator=one.generator("batches")))
    assert one.generator("batches").device == CPU


# --- teachers and two-pass steps ------------------------------------------------------------


def test_a_frozen_copy_is_a_teacher_that_does_not_move():
    model = linear().train()
    teacher = frozen_copy(model)
    before = state_of(teacher)
    assert identical(before, model.state_dict())
    assert model.training
    assert not any(m.training for m in teacher.modules())
    assert not any(p.requires_grad for p in teacher.parameters())
    assert all(p.requires_grad for p in model.parameters())
    Trainer(model, task(local_data(9)), Settings()).train()
    assert identical(teacher.state_dict(), before)


def test_perturbed_parameters_come_back_bitwise():
    model = linear()
    parameters = list(model.parameters())
    before = copy.deepcopy(parameters)
    offsets = [torch.full_like(p, 1e6 / 3) for p in parameters]  # not undone by subtracting
    with perturbed(parameters, offsets):
        for now, then in zip(parameters, before, strict=True):
            assert torch.equal(now, then + 1e6 / 3)
    assert all(torch.equal(now, then) for now, then in zip(parameters, before, strict=True))

    with pytest.raises(ZeroDivisionError), perturbed(parameters, offsets):
        raise ZeroDivisionError
    assert all(torch.equal(now, then) for now, then in zip(parameters, before, strict=True))
    assert all(p.grad is None for p in parameters)


# --- devices --------------------------------------------------------------------------------


def test_devices():
    assert choose_device("cpu") == CPU
    assert choose_device("auto").type in {"cpu", "cuda", "mps"}
    with pytest.raises(ConfigError, match='device="cuda:99" is not available'):
        choose_device("cuda:99")
