"""Architectures: parameter counts, sizes, initial weights, running statistics."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from fedadb_app.errors import ConfigError
from fedadb_app.models.classifier import (
    ARCHITECTURES,
    ImageClassifier,
    ModelSpec,
    build_classifier,
    feature_size,
)
from fedadb_app.models.norm import frozen_running_statistics, make_norm
from strategies.registry import METHODS

GREY, RGB = (1, 28, 28), (3, 28, 28)
SIDES = [(28, 28), (32, 32), (64, 64), (128, 128), (224, 224), (28, 40), (225, 31)]


def build(name: str, norm: str, shape: tuple[int, int, int], classes: int, seed: int = 0):
    return build_classifier(ModelSpec(name, norm, shape, classes), seed)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


# --- architectures --------------------------------------------------------------------------


def test_lenet_has_61791_parameters():
    # 5*5*6+6, 5*5*6*16+16, 400*120+120, 120*84+84, 84*11+11
    assert 156 + 2416 + 48120 + 10164 + 935 == 61791
    assert count(build("lenet", "batch", GREY, 11)) == 61_791


@pytest.mark.parametrize("norm", ["batch", "batch-local", "group"])
def test_resnet18_has_11173962_parameters_and_running_statistics_only_where_asked(norm):
    model = build("resnet18", norm, (3, 32, 32), 10)
    assert count(model) == 11_173_962
    assert len(model.parameter_names()) == 62  # 20 convolutions, 20 norms and the head
    buffers = set(model.state_dict()) - set(model.parameter_names())
    assert len(buffers) == (60 if norm == "batch" else 0)
    assert model.has_batch_statistics() is (norm != "group")


def test_cnn_layers():
    model = build("cnn", "batch", RGB, 10)
    expected = [(32, 3, 5, 5), (32,), (64, 32, 5, 5), (64,), (512, 3136), (512,), (10, 512), (10,)]
    assert [tuple(p.shape) for p in model.parameters()] == expected
    assert not model.has_batch_statistics()


def test_lenet_maps():
    model = build("lenet", "batch", GREY, 11)
    expected = [(6, 1, 5, 5), (6,), (16, 6, 5, 5), (16,), (120, 400), (120,), (84, 120), (84,)]
    shapes = [tuple(p.shape) for p in model.features.parameters()]
    assert shapes == expected
    assert not model.has_batch_statistics()


@pytest.mark.parametrize("norm", ["batch", "batch-local", "group"])
def test_googlenet_is_torchvisions_without_its_classifiers(norm):
    from torchvision.models import GoogLeNet

    whole = GoogLeNet(num_classes=7, aux_logits=False, init_weights=False)
    model = build("googlenet", norm, (3, 64, 64), 7)
    assert count(model) == count(whole) == 5_607_079
    buffers = set(model.state_dict()) - set(model.parameter_names())
    assert len(buffers) == (3 * 57 if norm == "batch" else 0)  # 57 convolutions
    assert model.has_batch_statistics() is (norm != "group")
    if norm == "batch":
        shapes = [p.shape for p in whole.parameters()]
        assert [p.shape for p in model.parameters()] == shapes
        whole.load_state_dict(
            dict(zip(whole.state_dict(), model.state_dict().values(), strict=True))
        )
        for module in whole.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps = 1e-5  # PyTorch's default, as in the other models here
        images = torch.rand(2, 3, 64, 64)
        torch.testing.assert_close(model.eval()(images), whole.eval()(images))


def test_googlenet_draws_nothing_in_training():
    """Its dropout belongs to the classifier; here every random number comes from the run's seed."""
    model = build("googlenet", "group", (1, 64, 70), 3)
    images = torch.rand(1, 1, 64, 70)  # a batch of one
    assert torch.equal(model.train()(images), model(images))
    assert not any(isinstance(module, nn.Dropout) for module in model.modules())


def test_a_batch_of_one_passes_googlenet_at_its_smallest_size():
    model = build("googlenet", "batch", (3, 64, 64), 3)
    assert torch.isfinite(model(torch.rand(1, 3, 64, 64))).all()


@pytest.mark.parametrize("sides", [(32, 32), (63, 224), (224, 28)])
def test_googlenet_refuses_small_images(sides):
    with pytest.raises(ConfigError, match=rf'model="googlenet".*64 pixels.*{sides[0]}x{sides[1]}'):
        build("googlenet", "batch", (3, *sides), 7)


@pytest.mark.parametrize("shape", [RGB, (3, 32, 32)])
def test_resnet18_ends_in_a_4x4_map(shape):
    model = build("resnet18", "group", shape, 10)
    maps: list[torch.Size] = []
    pool = next(m for m in model.modules() if isinstance(m, nn.AdaptiveAvgPool2d))
    pool.register_forward_pre_hook(lambda _, args: maps.append(args[0].shape))
    model(torch.zeros(2, *shape))
    assert maps == [torch.Size([2, 512, 4, 4])]


@pytest.mark.parametrize(("name", "size"), [("lenet", 84), ("cnn", 512), ("resnet18", 512)])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_size_from_28_to_224_passes(name, size, side, channels):
    spec = ModelSpec(name, "batch", (channels, *side), 7)
    with torch.device("meta"):  # shapes without the work
        features = ARCHITECTURES[name].features(spec.image_shape, "batch")
        assert feature_size(features, spec) == size
        assert features(torch.zeros(2, *spec.image_shape)).shape == (2, size)


@pytest.mark.parametrize("name", ["lenet", "cnn", "resnet18"])
def test_a_rectangular_image_gets_logits(name):
    model = build(name, "batch", (3, 36, 29), 7).eval()
    with torch.no_grad():
        logits = model(torch.rand(2, 3, 36, 29))
    assert logits.shape == (2, 7)
    assert torch.isfinite(logits).all()
    assert not torch.equal(logits[0], logits[1])


@pytest.mark.parametrize(
    ("name", "channels", "expected"),
    [
        ("auto", 1, "lenet"),
        ("auto", 3, "resnet18"),
        ("cnn", 1, "cnn"),
        ("resnet18", 1, "resnet18"),
        ("lenet", 3, "lenet"),
    ],
)
def test_auto_is_the_papers_rule(name, channels, expected):
    assert ModelSpec(name, "batch", (channels, 28, 28), 5).architecture == expected


def test_residual_block_by_hand():
    """out = relu(norm(conv(relu(norm(conv(x))))) + shortcut(x)), on the third stage's first."""
    model = build("resnet18", "batch", (3, 16, 16), 4).eval()
    block = next(
        m
        for m in model.features
        if type(m).__name__ == "BasicBlock" and m.residual[0].stride[0] > 1
    )
    x = torch.rand(2, 64, 8, 8)
    conv1, norm1, _, conv2, norm2 = block.residual
    short_conv, short_norm = block.shortcut
    with torch.no_grad():
        inner = norm2(conv2(norm1(conv1(x)).clamp_min(0)))
        expected = (inner + short_norm(short_conv(x))).clamp_min(0)
        torch.testing.assert_close(block(x), expected)
    assert block(x).shape == (2, 128, 4, 4)


# --- initial weights ------------------------------------------------------------------------


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


# --- heads ----------------------------------------------------------------------------------


def test_the_first_head_gives_the_logits():
    heads = {"one": nn.Linear(4, 3), "two": nn.Linear(4, 3)}
    model = ImageClassifier(nn.Flatten(), heads)
    images = torch.rand(5, 1, 2, 2)
    expected = images.flatten(1) @ heads["one"].weight.T + heads["one"].bias
    torch.testing.assert_close(model(images), expected)
    assert model.evaluated_head == "one"


# --- normalisation --------------------------------------------------------------------------


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
    model = build("resnet18", "batch", (3, 16, 16), 4).train()
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


def test_resnet18_computes_with_channels_last_and_gives_what_it_gave_without():
    model = build("resnet18", "batch", RGB, 9)
    reference = copy.deepcopy(model)
    stem = reference.features[0]
    reference.features[0] = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    reference.features[0].load_state_dict(stem.state_dict())
    images = torch.rand(4, *RGB, generator=torch.Generator().manual_seed(0))
    formats: list[bool] = []
    model.features[-3].register_forward_hook(
        lambda _, __, maps: formats.append(maps.is_contiguous(memory_format=torch.channels_last))
    )
    torch.testing.assert_close(model(images), reference(images), rtol=1e-4, atol=1e-5)
    assert formats == [True]
    assert all(tensor.is_contiguous() for tensor in model.state_dict().values())
