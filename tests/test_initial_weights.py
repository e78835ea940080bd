"""Initial weights: a seed is a model, whatever its heads and whatever was drawn before."""

import math

import pytest
import torch
from torch import nn

from fedadb_app.models.classifier import ImageClassifier, ModelSpec, build_classifier
from strategies.registry import METHODS

GREY, RGB = (1, 28, 28), (3, 28, 28)


def build(name: str, norm: str, shape: tuple[int, int, int], classes: int, seed: int = 0):
    return build_classifier(ModelSpec(name, norm, shape, classes), seed)


@pytest.mark.parametrize(("name", "shape"), [("lenet", GREY), ("resnet18", (3, 16, 16))])
def test_fedavg_and_fedadb_start_from_the_same_features_and_first_head(name, shape):
    spec = ModelSpec(name, "batch", shape, 5)
    plain = build_classifier(spec, 9, METHODS["fedavg"].heads).state_dict()
    dual = build_classifier(spec, 9, METHODS["fedadb"].heads).state_dict()
    renamed = {key.replace("heads.head", "heads.agb"): tensor for key, tensor in plain.items()}
    assert all(torch.equal(dual[key], tensor) for key, tensor in renamed.items())
    assert set(dual) - set(renamed) == {"heads.lcb.weight", "heads.lcb.bias"}
    assert not torch.equal(dual["heads.lcb.weight"], dual["heads.agb.weight"])


def test_a_seed_is_a_model():
    one, same, other = (build("lenet", "batch", GREY, 5, seed) for seed in (0, 0, 1))
    for a, b, c in zip(one.parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_weights_follow_pytorchs_default_law():
    """Uniform on +-1/sqrt(fan-in), for weights and biases."""
    model = build("cnn", "batch", RGB, 10)
    for layer, fan_in in ((model.features[0], 75), (model.features[7], 3136)):
        bound = 1 / math.sqrt(fan_in)
        for tensor in (layer.weight, layer.bias):
            assert tensor.abs().max() <= bound
            assert tensor.abs().max() > 0.8 * bound
        expected, n = bound / math.sqrt(3), layer.weight.numel()
        assert float(layer.weight.std().detach()) == pytest.approx(expected, rel=3 / math.sqrt(n))


def test_building_leaves_the_global_generators_alone(monkeypatch):
    def touched(*_: object) -> None:
        raise AssertionError("reseeded an accelerator's generator")

    monkeypatch.setattr(torch.cuda, "manual_seed_all", touched)
    monkeypatch.setattr(torch.mps, "manual_seed", touched)
    torch.random.default_generator.manual_seed(77)
    before = torch.get_rng_state()
    build("lenet", "batch", GREY, 5)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_global_generator_is_of_no_account():
    torch.manual_seed(1)
    one = build("lenet", "batch", GREY, 5)
    torch.manual_seed(2)
    other = build("lenet", "batch", GREY, 5)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_new_model_is_in_training_mode_with_fresh_statistics():
    model = build("resnet18", "batch", (3, 16, 16), 4)
    assert all(m.training for m in model.modules())
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert not layer.running_mean.any()
            assert (layer.running_var == 1).all()
            assert layer.num_batches_tracked == 0


def test_the_first_head_gives_the_logits():
    heads = {"one": nn.Linear(4, 3), "two": nn.Linear(4, 3)}
    model = ImageClassifier(nn.Flatten(), heads)
    images = torch.rand(5, 1, 2, 2)
    expected = images.flatten(1) @ heads["one"].weight.T + heads["one"].bias
    torch.testing.assert_close(model(images), expected)
    assert model.evaluated_head == "one"
