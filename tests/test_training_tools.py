"""Precision, generators, teachers, two-pass steps and devices of local training."""

import copy
import math

import pytest
import torch
from training_cases import CPU, SMALL, identical, lenet, linear, local_data, state_of, task

from fedadb_app.config import Settings
from fedadb_app.errors import ConfigError
from fedadb_app.local_training import (
    Trainer,
    choose_device,
    frozen_copy,
    perturbed,
)

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
