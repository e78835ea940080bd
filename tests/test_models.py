"""Models: parameter counts, layers, the sizes they take, what a run asks of them beforehand."""

import copy

import pytest
import torch
from torch import nn

from fedadb_app.config import RunConfig
from fedadb_app.data.registry import DATASETS, preparation_of
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import ConfigError
from fedadb_app.models.classifier import (
    ModelSpec,
    build_classifier,
    feature_size,
    model_facts,
)
from fedadb_app.models.registry import MODELS
from strategies.registry import METHODS

GREY, RGB = (1, 28, 28), (3, 28, 28)
SIDES = [(28, 28), (32, 32), (64, 64), (128, 128), (224, 224), (28, 40), (225, 31)]


def build(name: str, norm: str, shape: tuple[int, int, int], classes: int, seed: int = 0):
    return build_classifier(ModelSpec(name, norm, shape, classes), seed)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


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


@pytest.mark.parametrize("norm", ["batch", "batch-local", "group"])
def test_resnet8_has_78042_parameters_and_running_statistics_only_where_asked(norm):
    """Convolutions without bias, two numbers per channel of a norm, a linear head.

    Stem 27 * 16 + 2 * 16; stage 1: 2 * 9 * 16^2 + 4 * 16; stage 2: 9 * 16 * 32 + 9 * 32^2 + 4 * 32,
    shortcut 16 * 32 + 2 * 32; stage 3: 9 * 32 * 64 + 9 * 64^2 + 4 * 64, shortcut 32 * 64 + 2 * 64;
    head 64 * 10 + 10.
    """
    assert 464 + (4608 + 64) + (13824 + 128 + 576) + (55296 + 256 + 2176) + 650 == 78042
    model = build("resnet8", norm, (3, 32, 32), 10)
    assert count(model) == 78_042
    assert len(model.parameter_names()) == 29  # 9 convolutions, 9 norms and the head
    buffers = set(model.state_dict()) - set(model.parameter_names())
    assert len(buffers) == (27 if norm == "batch" else 0)
    assert model.has_batch_statistics() is (norm != "group")


@pytest.mark.parametrize(("side", "map_side"), [(28, 7), (32, 8)])
def test_resnet8_halves_its_maps_twice(side, map_side):
    model = build("resnet8", "group", (3, side, side), 10)
    shapes: list[tuple[int, ...]] = []
    for module in model.features:
        module.register_forward_hook(lambda _, __, out: shapes.append(tuple(out.shape[1:])))
    model(torch.zeros(1, 3, side, side))
    half = (side + 1) // 2
    assert shapes[2:] == [  # after the stem
        (16, side, side),
        (16, side, side),
        (32, half, half),
        (64, map_side, map_side),
        (64, 1, 1),
        (64,),
    ]


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


@pytest.mark.parametrize(
    ("name", "size"), [("lenet", 84), ("cnn", 512), ("resnet8", 64), ("resnet18", 512)]
)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_size_from_28_to_224_passes(name, size, side, channels):
    spec = ModelSpec(name, "batch", (channels, *side), 7)
    with torch.device("meta"):  # shapes without the work
        features = MODELS[name].features(spec.image_shape, "batch")
        assert feature_size(features, spec) == size
        assert features(torch.zeros(2, *spec.image_shape)).shape == (2, size)


@pytest.mark.parametrize("name", ["lenet", "cnn", "resnet8"])
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


# --- what a run asks beforehand ---------------------------------------------------------------


FACTS = [
    ("lenet", "batch", GREY, 84, False, 0),
    ("resnet8", "batch", RGB, 64, True, 27),
    ("resnet8", "batch-local", RGB, 64, True, 0),
    ("resnet18", "group", RGB, 512, False, 0),
    ("googlenet", "batch", (3, 64, 64), 1024, True, 171),
]


@pytest.mark.parametrize(("name", "norm", "shape", "size", "by_batch", "buffers"), FACTS)
def test_facts_are_those_of_the_built_model(name, norm, shape, size, by_batch, buffers):
    """Each normalisation layer with running statistics has three: mean, variance and a counter."""
    spec = ModelSpec(name, norm, shape, 7)
    before = torch.get_rng_state()
    facts = model_facts(spec)
    assert (facts.feature_size, facts.batch_statistics, facts.smallest_batch) == (size, by_batch, 1)
    assert len(facts.buffers) == buffers
    assert torch.equal(torch.get_rng_state(), before)
    model = build_classifier(spec, 0)
    assert set(facts.buffers) == set(model.state_dict()) - set(model.parameter_names())


def test_a_head_that_normalises_features_needs_two_samples():
    """FedGELA's BatchNorm1d has one value per channel and sample."""
    spec = ModelSpec("lenet", "batch", GREY, 7)
    facts = model_facts(spec, METHODS["fedgela"].heads)
    assert (facts.feature_size, facts.batch_statistics, facts.smallest_batch) == (84, True, 2)
    assert "heads.frame.norm.running_mean" in facts.buffers


def test_facts_of_a_model_that_cannot_be():
    with pytest.raises(ConfigError, match="64 pixels"):
        model_facts(ModelSpec("googlenet", "batch", RGB, 7))
    with pytest.raises(ConfigError, match="84 for 100 classes"):
        model_facts(ModelSpec("lenet", "batch", GREY, 100), METHODS["fedgela"].heads)


@pytest.mark.parametrize(
    ("values", "shape", "classes"),
    [
        ({"dataset": "digits"}, (1, 28, 28), 10),
        ({"dataset": "cifar100"}, (3, 32, 32), 100),
        ({"dataset": "pacs_64"}, (3, 64, 64), 7),
        ({"dataset": "pathmnist-styles"}, (3, 28, 28), 9),
        ({"dataset": "organamnist_128"}, (1, 128, 128), 11),
        ({"classes": "a,b", "image_shape": "3x30x40", "evaluate": "none"}, (3, 30, 40), 2),
    ],
)
def test_what_a_run_will_ask_for_is_known_before_a_file_is_opened(values, shape, classes):
    config = RunConfig(**values)
    preparation = preparation_of(config.dataset)
    expected = ModelSpec("auto", "batch", shape, classes, preparation)
    assert ModelSpec.expected(config) == expected


def test_of_a_users_file_nothing_is_known_before_it_is_opened():
    assert ModelSpec.expected(RunConfig(dataset="/data/x.npz")) is None


def test_what_is_known_beforehand_is_what_there_is(cache_folder):
    dataset = open_dataset("digits", "")
    known = DATASETS["digits"]
    assert (known.image_shape, known.num_classes) == (dataset.image_shape, dataset.num_classes)
