"""Nets of torchvision and timm as feature extractors: layers, normalisation, input, names."""

import copy
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedadb_app.config import RunConfig
from fedadb_app.data.preparation import CENTRED, Preparation
from fedadb_app.errors import ConfigError
from fedadb_app.models import torchvision_nets
from fedadb_app.models.classifier import ModelSpec, build_classifier, feature_size, model_facts
from fedadb_app.models.net_input import Expected, NetInput
from fedadb_app.models.norm import obey_norm
from fedadb_app.models.registry import MODELS
from strategies.registry import METHODS

SMALL = "torchvision:shufflenet_v2_x0_5"
GREY, RGB = (1, 28, 28), (3, 28, 28)
NORMS = ["batch", "batch-local", "group"]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


# --- the input ---------------------------------------------------------------------------------


def test_a_net_sees_pixels_normalised_as_its_weights_expect():
    expected = Expected((0.1, 0.2, 0.3), (0.5, 0.25, 2.0), smallest=4)
    own = Preparation((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    pixels = (random(2, 3, 8, 6) * 255).byte()
    seen = NetInput(expected, own, (3, 8, 6))(own.normalise(pixels, torch.device("cpu")))
    red, green, blue = (pixels / 255).unbind(1)
    by_hand = torch.stack([(red - 0.1) / 0.5, (green - 0.2) / 0.25, (blue - 0.3) / 2.0], 1)
    torch.testing.assert_close(seen, by_hand, atol=1e-5, rtol=0)


def test_grey_images_meet_the_sum_of_the_first_layers_weights():
    """A convolution of the three equal channels is one of a single channel, weights added up."""
    expected = Expected((0.5,) * 3, (0.5,) * 3, smallest=4)
    grey = random(2, 1, 8, 8)
    convolution = nn.Conv2d(3, 4, 3, bias=False)
    one = F.conv2d(grey, convolution.weight.sum(dim=1, keepdim=True))
    seen = NetInput(expected, CENTRED, (1, 8, 8))(grey)
    torch.testing.assert_close(convolution(seen), one, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("shape", "sides", "smallest", "seen"),
    [
        ((1, 28, 28), (224, 224), 64, (224, 224)),
        ((3, 28, 56), None, 64, (64, 128)),
        ((3, 64, 100), None, 64, (64, 100)),
        ((3, 224, 200), None, 64, (224, 200)),
        ((3, 224, 200), (96, 96), 64, (96, 96)),
    ],
)
def test_at_which_size_a_net_sees_an_image(shape, sides, smallest, seen):
    expected = Expected((0.5,) * 3, (0.5,) * 3, sides, smallest)
    assert expected.sides_of(shape) == seen
    images = random(1, *shape)
    output = NetInput(expected, CENTRED, shape)(images)
    assert output.shape == (1, 3, *seen)
    if seen == shape[1:]:
        assert torch.equal(output, images.expand(1, 3, *seen))


def test_enlarging_is_bilinear_and_lets_gradients_through():
    """Twice as large: each new pixel is 3/4 the nearest and 1/4 the next one."""
    images = torch.tensor([[[[0.0, 4.0], [0.0, 4.0]]]], requires_grad=True)
    expected = Expected((0.5,) * 3, (0.5,) * 3, (4, 4))
    seen = NetInput(expected, CENTRED, (1, 2, 2))(images)
    assert seen[0, 0, 0].tolist() == [0.0, 1.0, 3.0, 4.0]
    seen.sum().backward()
    assert images.grad.tolist() == [[[[12.0, 12.0], [12.0, 12.0]]]]  # 16 pixels of 3 channels


# --- normalisation -----------------------------------------------------------------------------


def test_batch_normalisation_becomes_what_the_policy_says():
    net = nn.Sequential(nn.BatchNorm2d(6, eps=1e-3, momentum=0.01), nn.Sequential(nn.LayerNorm(4)))
    with torch.no_grad():
        net[0].weight.copy_(torch.arange(6.0))
    made = {}
    for norm in NORMS:
        made[norm] = copy.deepcopy(net)
        obey_norm(made[norm], norm)
        assert isinstance(made[norm][1][0], nn.LayerNorm)
    assert (made["batch"][0].eps, made["batch"][0].momentum) == (1e-3, 0.01)
    assert made["batch"].state_dict().keys() == net.state_dict().keys()
    assert not list(made["batch-local"].buffers())
    assert not list(made["group"].buffers())
    assert torch.equal(made["batch-local"][0].weight, torch.arange(6.0))
    assert (made["group"][0].num_groups, made["group"][0].eps) == (2, 1e-3)
    images = 3 * random(4, 6, 2, 4)
    mean = images.mean((0, 2, 3), keepdim=True)
    var = images.var((0, 2, 3), unbiased=False, keepdim=True)
    by_hand = (images - mean) / (var + 1e-3).sqrt() * torch.arange(6.0)[:, None, None]
    local = made["batch-local"][0]
    torch.testing.assert_close(local.eval()(images), by_hand)
    torch.testing.assert_close(local.train()(images), by_hand)


def test_an_odd_number_of_channels_is_one_group():
    net = nn.Sequential(nn.BatchNorm2d(5))
    obey_norm(net, "group")
    assert net[0].num_groups == 1


# --- torchvision -------------------------------------------------------------------------------


def test_features_are_torchvisions_own_and_the_head_is_apart():
    from torchvision import models

    whole = models.get_model("shufflenet_v2_x0_5", weights=None, num_classes=7)
    model = build_classifier(ModelSpec(SMALL, "batch", (3, 64, 64), 7), 0)
    state = model.state_dict()
    theirs = {k: v for k, v in whole.state_dict().items() if not k.startswith("fc.")}
    assert [f"features.net.{name}" for name in theirs] == [k for k in state if "heads" not in k]
    model.features.net.load_state_dict(theirs)
    model.heads["head"].load_state_dict(whole.fc.state_dict())
    pixels = (random(2, 3, 64, 64) * 255).byte()
    mean, std = (
        torch.tensor(values)[:, None, None]
        for values in (torchvision_nets.MEAN, torchvision_nets.STD)
    )
    expected = whole.eval()((pixels / 255 - mean) / std)
    given = model.eval()(CENTRED.normalise(pixels, torch.device("cpu")))
    torch.testing.assert_close(given, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_resnet50_has_2048_features(norm):
    """25 557 032 parameters with 1000 classes, of which 2048 * 1000 + 1000 are the head's."""
    facts = model_facts(ModelSpec("torchvision:resnet50", norm, RGB, 5))
    assert facts.feature_size == 2048
    assert len(facts.buffers) == (3 * 53 if norm == "batch" else 0)  # 53 convolutions
    assert facts.batch_statistics is (norm != "group")
    assert facts.smallest_batch == 1
    trained = sum(t.numel() for name, t in facts.state.items() if name not in facts.buffers)
    assert trained == 25_557_032 - 2_049_000 + 2048 * 5 + 5


@pytest.mark.parametrize("head", ["fedavg", "fedadb", "fedgela"])
def test_a_step_of_training_from_grey_images(head):
    spec = ModelSpec(SMALL, "group", GREY, 5)
    model, twin = (build_classifier(spec, 3, METHODS[head].heads) for _ in range(2))
    before = torch.get_rng_state()
    features = model.features(random(2, *GREY))
    sum(head(features).square().sum() for head in model.heads.values()).backward()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(p.grad is not None for p in model.parameters())
    assert torch.equal(model(random(2, *GREY)), twin(random(2, *GREY)))


def test_an_images_gradient_passes_through():
    """What class anchors are optimised by, at the size the run's images have."""
    model = build_classifier(ModelSpec(SMALL, "batch", GREY, 5), 0).eval()
    images = random(2, *GREY).requires_grad_()
    model(images).sum().backward()
    assert images.grad.shape == (2, *GREY)
    assert images.grad.any()


def test_dropout_and_stochastic_depth_draw_nothing():
    spec = ModelSpec("torchvision:mobilenet_v3_small", "batch", RGB, 5)
    model = build_classifier(spec, 0).train()
    assert [m.p for m in model.modules() if isinstance(m, nn.Dropout)] == [0.0]
    before = torch.get_rng_state()
    assert torch.equal(model(random(2, *RGB)), model(random(2, *RGB)))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_table_of_constants_is_no_state():
    """Swin's positions in a window: nothing to train, average, send or protect."""
    facts = model_facts(ModelSpec("torchvision:swin_t", "batch", RGB, 5))
    assert facts.buffers == ()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("torchvision:resnet51", 'did you mean "torchvision:resnet50"'),
        ("torchvision:vit_b16", 'did you mean "torchvision:vit_b_16"'),
        ("torchvision:googlenet", "is unknown"),
        ("timm:resnet_18", 'did you mean "timm:resnet'),
        ("torchvison:resnet50", 'did you mean "torchvision:resnet50"'),
    ],
)
def test_an_unknown_net_is_told_of_the_nearest(name, said):
    with pytest.raises(ConfigError) as refusal:
        MODELS.check(name)
    assert f'model="{name}"' in str(refusal.value)
    assert said in str(refusal.value)


def test_what_gives_no_row_of_features_is_refused():
    spec = ModelSpec("strange", "batch", (3, 64, 64), 5)
    with pytest.raises(ConfigError, match=r'"strange" gives \(1, 3, 64, 64\).*expected \(1, d\)'):
        feature_size(nn.Identity(), spec)
    with pytest.raises(ConfigError, match='"strange" cannot take images of 3x64x64: RuntimeError'):
        feature_size(nn.Conv2d(1, 1, 1), spec)


def test_a_run_knows_at_which_size_its_net_looks():
    config = RunConfig(dataset="cifar100", model="torchvision:vit_b_16")
    spec = ModelSpec.expected(config)
    assert spec.seen_sides == (224, 224)
    assert spec.preparation.mean == (0.5071, 0.4865, 0.4409)
    assert ModelSpec("lenet", "batch", GREY, 5).seen_sides == (28, 28)


# --- timm --------------------------------------------------------------------------------------


def test_without_timm_there_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match=r'model="timm:resnet18" needs timm.*fedadb-app\[timm\]'):
        MODELS.check("timm:resnet18")
    with pytest.raises(ConfigError, match="is unknown"):
        MODELS.check("resnet_nothing")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("net", "size", "sides"), [("test_efficientnet", 256, (64, 64)), ("test_vit", 64, (160, 160))]
)
def test_timms_nets_obey_the_policies_and_draw_nothing(net, size, sides, norm):
    timm = pytest.importorskip("timm")
    spec = ModelSpec(f"timm:{net}", norm, GREY, 5)
    model = build_classifier(spec, 0, METHODS["fedadb"].heads)
    assert model.heads["agb"].in_features == size
    assert spec.seen_sides == sides
    batches = {type(m) for m in model.modules() if isinstance(m, nn.BatchNorm2d)}
    assert bool(batches) is (norm != "group" and net == "test_efficientnet")
    before = torch.get_rng_state()
    features = model.train().features(random(2, *GREY))
    (model.heads["agb"](features) + model.heads["lcb"](features)).square().sum().backward()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(p.grad is not None for p in model.parameters())
    if norm == "batch":
        theirs = timm.create_model(net, num_classes=0)
        theirs.load_state_dict(model.features.net.state_dict())
        images = model.features.input(random(2, *GREY))
        assert torch.equal(theirs.eval()(images), model.eval().features(random(2, *GREY)))


def test_group_normalisation_keeps_the_activation_of_timms_layers():
    timm = pytest.importorskip("timm")
    net = timm.create_model("test_efficientnet", num_classes=0)
    layer = copy.deepcopy(net.bn1)
    obey_norm(net, "group")
    images = random(2, layer.num_features, 4, 4)
    normal = nn.GroupNorm(2, layer.num_features, eps=layer.eps)(images)
    torch.testing.assert_close(net.bn1(images), F.silu(normal))


# --- what takes longer -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("net", ["resnet50", "convnext_tiny", "vit_b_16", "densenet121"])
def test_the_large_nets_train_a_step(net):
    spec = ModelSpec(f"torchvision:{net}", "batch", GREY, 5)
    model = build_classifier(spec, 0, METHODS["fedadb"].heads).train()
    before = torch.get_rng_state()
    features = model.features(random(2, *GREY))
    (model.heads["agb"](features) + model.heads["lcb"](features)).square().sum().backward()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.slow
def test_nets_of_torchvision_that_are_offered_can_be_built():
    """One in six, of all families; all of them take minutes."""
    for name in sorted(torchvision_nets.names())[::6]:
        facts = model_facts(ModelSpec(f"torchvision:{name}", "group", GREY, 5))
        assert (facts.batch_statistics, facts.buffers, facts.smallest_batch) == (False, (), 1), name
