"""Pretrained weights from a file: what is loaded, what is drawn, and what is refused."""

import hashlib
import json
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from helpers import serve
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedadb_app.errors import ConfigError
from fedadb_app.models.classifier import ImageClassifier, ModelSpec, build_classifier
from fedadb_app.models.pretrained import load_weights
from strategies.registry import METHODS, read_run_config

NET = "torchvision:shufflenet_v2_x0_5"
RGB = (3, 28, 28)


def build(name: str = NET, norm: str = "batch", shape=RGB, head: str = "fedadb") -> ImageClassifier:
    return build_classifier(ModelSpec(name, norm, shape, 5), 0, METHODS[head].heads)


@pytest.fixture(scope="module")
def published() -> dict[str, Tensor]:
    """What torchvision would publish, with random values: 1000 classes, running statistics."""
    from torchvision import models

    torch.manual_seed(5)
    state = models.get_model("shufflenet_v2_x0_5", weights=None).state_dict()
    return {n: t if "tracked" in n else torch.rand(t.shape) for n, t in state.items()}


@pytest.fixture
def file(tmp_path, published) -> Path:
    torch.save(OrderedDict(published), tmp_path / "net.pth")
    return tmp_path / "net.pth"


@pytest.mark.parametrize("form", ["pth", "safetensors", "nested"])
def test_a_published_file_gives_the_features_and_the_heads_are_drawn(tmp_path, published, form):
    path = tmp_path / f"net.{form}"
    if form == "safetensors":
        save_file(published, path)
    else:
        torch.save({"state_dict": published, "epoch": 3} if form == "nested" else published, path)
    model, drawn = build(), build().state_dict()
    assert load_weights(model, path) == hashlib.sha256(path.read_bytes()).hexdigest()
    for name, tensor in model.state_dict().items():
        own = name.removeprefix("features.net.")
        assert torch.equal(tensor, drawn[name] if own == name else published[own]), name


@pytest.mark.parametrize("norm", ["batch-local", "group"])
def test_statistics_that_norm_replaces_are_left_out(file, published, norm):
    model = build(norm=norm)
    load_weights(model, file)
    state = model.state_dict()
    assert torch.equal(state["features.net.conv1.1.weight"], published["conv1.1.weight"])
    assert not any("running" in name for name in state)


def test_a_runs_own_model_gives_its_features_to_other_classes(tmp_path):
    source = build_classifier(ModelSpec("resnet8", "group", RGB, 9), 4)
    save_file(source.state_dict(), tmp_path / "model.safetensors")
    model = build("resnet8", "group")
    load_weights(model, tmp_path / "model.safetensors")
    for name, tensor in source.features.state_dict().items():
        assert torch.equal(model.features.state_dict()[name], tensor)
    library = build()
    save_file(
        {f"features.{n}": t for n, t in library.features.state_dict().items()}, tmp_path / "b"
    )
    (tmp_path / "b").rename(tmp_path / "b.safetensors")
    load_weights(build(), tmp_path / "b.safetensors")


def test_the_first_layer_of_a_grey_net_is_the_sum_over_colours(tmp_path):
    colour = build("resnet8", head="fedavg")
    save_file(colour.state_dict(), tmp_path / "model.safetensors")
    grey = build("resnet8", shape=(1, 28, 28), head="fedavg")
    load_weights(grey, tmp_path / "model.safetensors")
    images = torch.rand(2, 1, 28, 28)
    expected = colour.eval().features(images.expand(2, 3, 28, 28))
    torch.testing.assert_close(grey.eval().features(images), expected, atol=1e-4, rtol=1e-4)


def test_names_of_older_files_of_torchvision(tmp_path):
    """DenseNet's ``norm.1`` and ViT's ``linear_1``, as the published files have them."""
    from fedadb_app.models.pretrained import _renamed

    old = "features.denseblock1.denselayer12.norm.1.weight"
    assert _renamed(old) == "features.denseblock1.denselayer12.norm1.weight"
    assert _renamed("features.norm0.weight") == "features.norm0.weight"


REFUSED = {
    "cannot be read: No such file": lambda path, state: None,
    "cannot be read as torch.save of tensors alone": lambda path, state: path.write_bytes(b"PK"),
    "holds no state dict": lambda path, state: torch.save([1], path),
    "it lacks conv5.0.weight": lambda path, state: torch.save(
        {name: value for name, value in state.items() if name != "conv5.0.weight"}, path
    ),
    "it also has extra.weight": lambda path, state: torch.save(
        state | {"extra.weight": torch.ones(2)}, path
    ),
    r"conv5.0.weight is \(3,\) there, and \(1024, 192, 1, 1\) here": lambda path, state: torch.save(
        state | {"conv5.0.weight": torch.ones(3)}, path
    ),
    "conv5.0.weight has values that are not finite": lambda path, state: torch.save(
        state | {"conv5.0.weight": torch.full((1024, 192, 1, 1), torch.nan)}, path
    ),
}


@pytest.mark.parametrize(("said", "write"), REFUSED.items(), ids=REFUSED)
def test_what_does_not_fit_is_one_sentence(tmp_path, published, said, write):
    path = tmp_path / "net.pth"
    write(path, published)
    with pytest.raises(ConfigError, match=said) as refusal:
        load_weights(build(), path)
    assert str(refusal.value).startswith(f'weights="{path}"')
    assert "\n" not in str(refusal.value)


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return (Path.touch, (self.path,))


def test_nothing_in_a_file_is_executed(tmp_path):
    torch.save({"weight": Malicious(tmp_path / "executed")}, tmp_path / "net.pth")
    with pytest.raises(ConfigError, match="tensors alone"):
        load_weights(build(), tmp_path / "net.pth")
    assert not (tmp_path / "executed").exists()


def test_a_damaged_safetensors_file(tmp_path):
    (tmp_path / "net.safetensors").write_bytes(b"\x08" + b"\0" * 20)
    with pytest.raises(ConfigError, match="cannot be read as safetensors"):
        load_weights(build(), tmp_path / "net.safetensors")


def test_a_run_begins_with_the_file_and_says_which(tmp_path):
    source = build_classifier(ModelSpec("lenet", "batch", (1, 28, 28), 10), 4)
    path = tmp_path / "start.safetensors"
    save_file(source.state_dict(), path)
    values = {"strategy": "fedavg", "model": "lenet", "weights": str(path), "device": "cpu"}
    values |= {"num-server-rounds": 1, "local-epochs": 1, "learning-rate": 1e-9}
    values |= {"output-dir": str(tmp_path), "run-name": "run"}
    serve(values)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["weights"] == hashlib.sha256(path.read_bytes()).hexdigest()
    end = load_file(tmp_path / "run" / "model.safetensors")
    drawn = build_classifier(ModelSpec("lenet", "batch", (1, 28, 28), 10), 0).state_dict()
    for name, tensor in end.items():
        start = source.state_dict()[name] if name.startswith("features") else drawn[name]
        torch.testing.assert_close(tensor, start, atol=1e-6, rtol=0)


def test_a_file_that_is_not_there_ends_the_run_before_a_node_is_asked(tmp_path):
    values = {"weights": str(tmp_path / "none.pth"), "output-dir": str(tmp_path), "run-name": "run"}
    with pytest.raises(ConfigError, match="cannot be read"):
        serve(values)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "none.pth" in summary["reason"]


def test_a_relative_path_is_refused():
    with pytest.raises(ConfigError, match=r'weights="net\.pth" must be an absolute path'):
        read_run_config({"weights": "net.pth"})
