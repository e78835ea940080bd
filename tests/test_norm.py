"""Normalisation layers by policy, and running statistics held still for a while."""

import pytest
import torch
from torch import Tensor, nn

from fedadb_app.models.classifier import ModelSpec, build_classifier
from fedadb_app.models.norm import frozen_running_statistics, make_norm


def test_group_normalisation_has_two_groups_and_looks_at_one_sample():
    norm = make_norm("group", 8)
    images = torch.rand(4, 8, 3, 3)
    halves = images.view(4, 2, 36)
    mean, var = halves.mean(2, keepdim=True), halves.var(2, unbiased=False, keepdim=True)
    expected = ((halves - mean) / (var + 1e-5).sqrt()).view_as(images)
    torch.testing.assert_close(norm(images), expected, atol=1e-5, rtol=0)


def test_batch_local_uses_the_batch_in_evaluation_too():
    images = 3 * torch.rand(4, 2, 3, 3) + 5
    mean = images.mean((0, 2, 3), keepdim=True)
    var = images.var((0, 2, 3), unbiased=False, keepdim=True)
    expected = (images - mean) / (var + 1e-5).sqrt()
    for mode in (True, False):
        local, running = make_norm("batch-local", 2).train(mode), make_norm("batch", 2).train(mode)
        torch.testing.assert_close(local(images), expected, atol=1e-5, rtol=0)
        assert torch.allclose(running(images), expected, atol=1e-4) is mode


def norm_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def test_frozen_running_statistics():
    model = build_classifier(ModelSpec("resnet8", "batch", (3, 16, 16), 4), 0).train()
    images = torch.rand(3, 3, 16, 16)
    model(images)
    before = norm_state(model)
    with frozen_running_statistics(model):
        assert all(m.training for m in model.modules())
        frozen = model(2 * images)
    assert all(m.training for m in model.modules())
    after = norm_state(model)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)

    thawed = model(2 * images)  # the same batch statistics, and now they are recorded
    assert torch.equal(frozen, thawed)
    later = norm_state(model)
    assert not any(torch.equal(before[name], later[name]) for name in before)
    layer = next(m for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    assert layer.momentum == 0.1
    assert int(layer.num_batches_tracked) == 2


def test_running_statistics_thaw_after_a_failure():
    model = nn.Sequential(nn.BatchNorm2d(2))
    with pytest.raises(ZeroDivisionError), frozen_running_statistics(model):
        raise ZeroDivisionError
    model(torch.rand(3, 2, 4, 4))
    assert int(model[0].num_batches_tracked) == 1
    assert model[0].running_mean.any()


@pytest.mark.parametrize("norm", ["batch-local", "group"])
def test_freezing_a_model_without_running_statistics_is_harmless(norm):
    model = nn.Sequential(make_norm(norm, 2))
    images = torch.rand(3, 2, 4, 4)
    with frozen_running_statistics(model):
        frozen = model(images)
    assert torch.equal(frozen, model(images))
