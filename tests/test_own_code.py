"""A user's own net and data set: found by import, where they are used, or refused in a sentence."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from contract.settings import QUICK
from flwr.app import Context, Message, RecordDict
from helpers import REPOSITORY, make_federation
from torch import nn

import client_app
from fedadb_app import messages, own_code
from fedadb_app.config import RunConfig
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import ConfigError, DataError
from fedadb_app.flower_run import checked_values
from fedadb_app.models.classifier import ModelSpec, build_classifier, model_facts
from fedadb_app.refusals import RefusalError, refuse_error
from strategies.registry import read_run_config

NETS = """
import torch
from torch import nn

GIVEN = []

def build(image_shape, num_classes, norm):
    GIVEN.append((image_shape, num_classes, norm))
    channels = image_shape[0]
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, stride=4), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
        nn.Linear(4 * 7 * 7, 2 * num_classes),
    )

def dropping(image_shape, num_classes, norm):
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5))

def failing(image_shape, num_classes, norm):
    raise KeyError("no such\\nlayer")

def number(image_shape, num_classes, norm):
    return 7

def pictures(image_shape, num_classes, norm):
    return nn.Conv2d(image_shape[0], 2, 3)

LIST = [1]
"""

IMAGES = """
import numpy as np
from fedadb_app.data.prepared import Source, stamp_of

def write(folder):
    rng = np.random.default_rng(0)
    for part, count in (("train", 60), ("test", 20)):
        labels = np.arange(count) % 3
        images = rng.integers(0, 60, (count, 1, 28, 28)) + 80 * labels[:, None, None, None]
        np.save(folder / f"{part}_images.npy", images.astype(np.uint8))
        np.save(folder / f"{part}_labels.npy", labels.astype(np.int64))
    return ["dark", "grey", "bright"]

def load(name, home, download):
    return Source(name, stamp_of(), write)

def wrong(name, home, download):
    return [1, 2]

def failing(name, home, download):
    raise OSError("no disk")
"""


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch) -> Path:
    """Two modules that this machine has while a test runs."""
    (tmp_path / "own_nets_here.py").write_text(NETS)
    (tmp_path / "own_images_here.py").write_text(IMAGES)
    (tmp_path / "own_broken_here.py").write_text("import a_package_that_is_nowhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("own_nets_here", "own_images_here", "own_broken_here"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    model_facts.cache_clear()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("nets:build", True),
        ("my_package.nets:build", True),
        ("torchvision:resnet50", False),
        ("timm:resnet18", False),
        ("resnet8", False),
        ("nets:", False),
        ("nets.py:build", True),
        ("my-package:build", False),
        ("/data/images", False),
    ],
)
def test_which_names_are_a_users_own(name, own):
    assert own_code.is_own(name) is own


@pytest.mark.parametrize("norm", ["batch", "batch-local", "group"])
def test_an_own_net_is_told_shape_classes_and_norm_and_obeys(norm):
    model = build_classifier(ModelSpec("own_nets_here:build", norm, (1, 28, 28), 3), 0)
    assert [((1, 28, 28), 3, norm)] == sys.modules["own_nets_here"].GIVEN
    assert model.heads["head"].in_features == 6
    layer = model.features[1]
    assert isinstance(layer, nn.GroupNorm if norm == "group" else nn.BatchNorm2d)
    assert len(list(model.buffers())) == (3 if norm == "batch" else 0)


def test_nothing_is_imported_where_a_configuration_is_checked():
    """A node's study file comes between."""
    read_run_config({"model": "own_nets_here:build", "dataset": "own_images_here:load"})
    RunConfig(model="nowhere:build")
    assert not {"own_nets_here", "own_images_here"} & set(sys.modules)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere:build", 'this machine has no module "nowhere".*installed on the server'),
        ("own_nets_here.part:build", 'has no module "own_nets_here.part"'),
        ("own_broken_here:build", "cannot be imported: ModuleNotFoundError.*a_package_that_is_now"),
        ("own_nets_here:builder", "the module has no function of this name"),
        ("own_nets_here:LIST", "the module has a list, no function, of this name"),
        ("own_nets_here:failing", "failed: KeyError"),
        ("own_nets_here:number", "gave a int: expected a torch.nn.Module"),
        ("own_nets_here:dropping", r"draws random numbers.*1 drops with p=0\.5"),
        ("own_nets_here:pictures", r"gives \(1, 2, 26, 26\) of one image"),
    ],
)
def test_what_cannot_be_built_is_one_sentence(name, said):
    with pytest.raises(ConfigError, match=said) as refusal:
        model_facts(ModelSpec(name, "batch", (1, 28, 28), 3))
    assert f'model="{name}"' in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_federation_with_an_own_net_and_own_images(tmp_path):
    values = {**QUICK, "strategy": "fedadb", "model": "own_nets_here:build"}
    values |= {"dataset": "own_images_here:load", "output-dir": str(tmp_path / "runs")}
    federation = make_federation(values, clients=2)
    federation.run()
    assert [(row["clients"], row["failures"]) for row in federation.rows] == [("2", "0")] * 2
    assert all(torch.isfinite(t).all() for t in federation.strategy.global_model.values())
    data = open_dataset("own_images_here:load", "")
    assert (data.class_names, len(data.train_labels)) == (("dark", "grey", "bright"), 60)
    assert np.array_equal(np.unique(data.test_labels), [0, 1, 2])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere:load", 'this machine has no module "nowhere"'),
        ("own_images_here:wrong", "gave a list: expected a fedadb_app.data.prepared.Source"),
        ("own_images_here:failing", "failed: OSError: no disk"),
    ],
)
def test_an_own_data_set_that_cannot_be_had_is_one_sentence(name, said):
    with pytest.raises((ConfigError, DataError), match=said) as refusal:
        open_dataset(name, "")
    assert f'dataset="{name}"' in str(refusal.value)


def identified(values: dict[str, object], node_config: dict[str, object]) -> Message:
    whole = {"partition-id": 0, "num-partitions": 2, **node_config}
    held = Context(7, 11, whole, RecordDict(), {**QUICK, "dataset": "digits", **values})
    return client_app.app(messages.identity_query(11), held)


def test_a_node_that_lacks_the_code_refuses_and_says_so():
    reply = identified({"model": "nowhere:build"}, {})
    with pytest.raises(RefusalError, match='this machine has no module "nowhere"'):
        refuse_error(reply)
    assert not identified({"model": "own_nets_here:build"}, {}).has_error()


def test_a_nodes_study_file_refuses_before_anything_is_imported(modules):
    (modules / "study.toml").write_text('own-code = ["other:build"]')
    node = {"study": str(modules / "study.toml")}
    with pytest.raises(RefusalError, match="own-code: other:build is allowed"):
        refuse_error(identified({"model": "own_nets_here:build"}, node))
    assert "own_nets_here" not in sys.modules


def test_fedadb_run_finds_a_net_that_lies_in_the_app(tmp_path, monkeypatch):
    app = tmp_path / "app"
    app.mkdir()
    shutil.copy(REPOSITORY / "pyproject.toml", app)
    (app / "net_in_the_app.py").write_text(NETS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    values = {"model": "net_in_the_app:build", "output-dir": str(tmp_path / "runs")}
    assert checked_values(app, values)["model"] == "net_in_the_app:build"
    with pytest.raises(ConfigError, match='no module "net_elsewhere"'):
        checked_values(app, {**values, "model": "net_elsewhere:build"})
