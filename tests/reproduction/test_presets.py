"""The files in presets/: exactly those of the studies, valid for Flower, and each one runs."""

import re
import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from flwr.cli.run.run import parse_config_args
from helpers import REPOSITORY, read_csv, read_json, serve
from medmnist.info import INFO
from official_formats import make_cifar, make_cinic10, make_pacs, make_svhn
from torch import nn
from torchvision.datasets import CIFAR10, CIFAR100

from fedadb_app.assignments import app_defaults
from fedadb_app.data.clients import partition_of
from fedadb_app.data.sources import open_dataset
from fedadb_app.models.classifier import ModelSpec
from fedadb_app.models.norm import make_norm
from fedadb_app.models.registry import MODELS
from fedadb_app.models.resnet import BasicBlock
from fedadb_app.reproduction.presets import presets, text_of
from strategies.registry import read_run_config

FOLDER = REPOSITORY / "presets"
NAMES = sorted(path.name for path in FOLDER.iterdir())
DEFAULTS = app_defaults(REPOSITORY)

PACS = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
CINIC = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


def as_flower_reads_it(name):
    """Do what `flwr run --run-config presets/NAME.toml` does with the file."""
    values = parse_config_args([str(FOLDER / name)])
    assert values.keys() <= DEFAULTS.keys()
    return {**DEFAULTS, **values}


def test_the_files_are_those_that_the_studies_give():
    made = {f"{name}.toml": text_of(name, entry) for name, entry in presets()}
    assert sorted(made) == NAMES
    for name, text in made.items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text, name


def test_there_is_one_for_every_cell():
    count = {item: sum(n.startswith(f"{item}-") for n in NAMES) for item in ("table1", "table6")}
    # 11 methods, 10 columns, 2 scenarios; 5 methods
    assert count == {"table1": 220, "table6": 5}
    # Table 3: 4 rows, 3 alphas; Table 4: 5 weights and the dynamic one, 2 data sets;
    # Figure 2: 3 values of 3 keys, of FedAvg 1 + 3 + 3, the default counted once;
    # Figure 3: 3 values of 4 keys, the default counted once.
    assert len(NAMES) == 220 + 5 + 12 + 12 + (7 + 5) + 9


@pytest.mark.parametrize("name", NAMES)
def test_flower_and_the_app_take_it(name):
    values = as_flower_reads_it(name)
    config, _, _ = read_run_config(values)
    assert name.endswith(f"-{config.strategy}.toml")
    assert f"-{config.dataset}-" in name
    assert (f"alpha-{config.alpha:g}" in name) == (config.alpha != 0.1)
    assert config.fraction_train == (0.2 if "cross-silo" in name else 0.05)


def test_what_a_file_says_and_does_agree():
    text = (FOLDER / "table1-cross-silo-cifar10-alpha-0.05-fedadb.toml").read_text()
    assert "The paper reports 54.02 ± 0.60" in text
    assert "num-supernodes=20" in text
    assert "presets/table1-cross-silo-cifar10-alpha-0.05-fedadb.toml" in text
    values = as_flower_reads_it("table4-cross-device-cifar100-beta-0.7-fedadb.toml")
    assert (values["dataset"], values["fedadb.beta"]) == ("cifar100", "0.7")
    ablation = as_flower_reads_it("table3-cross-device-cifar10-use-lcb-false-alpha-0.2-fedadb.toml")
    assert (ablation["fedadb.use-lcb"], ablation["fedadb.use-anchors"]) == (False, True)


# --- each one runs --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Every data set of the paper in its official format: its shapes and classes, few images."""
    home = tmp_path_factory.mktemp("official")
    rng = np.random.default_rng(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        make_cifar(home, patch, CIFAR10, per_file=5)
        make_cifar(home, patch, CIFAR100, per_file=24)
        make_svhn(home, patch)
        make_cinic10(home, CINIC)
        make_pacs(home, 10, PACS)
        for flag in ("organamnist", "pathmnist", "tissuemnist"):
            classes, shape = len(INFO[flag]["label"]), (28, 28, 3)[: 1 + INFO[flag]["n_channels"]]
            arrays = {}
            for part, count in (("train", 24), ("test", classes)):
                arrays[f"{part}_images"] = rng.integers(0, 256, (count, *shape), np.uint8)
                arrays[f"{part}_labels"] = np.arange(count)[:, None] % classes
            np.savez(home / f"{flag}.npz", **arrays)
        yield home
    open_dataset.cache_clear()
    partition_of.cache_clear()


SMOKE = {
    "num-server-rounds": 1,
    "local-epochs": 1,
    "batch-size": 4,
    "fedadb.anchor-steps": 1,
    "device": "cpu",
}


def thin_resnet18(image_shape, norm):
    """ResNet-18 with a quarter of its channels."""
    widths = (16, 16, 16, 32, 32, 64, 64, 128, 128)
    blocks = [
        BasicBlock(before, after, 1 if before == after else 2, norm)
        for before, after in pairwise(widths)
    ]
    stem = nn.Conv2d(image_shape[0], 16, 3, padding=1, bias=False)
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(stem, make_norm(norm, 16), nn.ReLU(), *blocks, *pool)


def runs_as_it_is(name):
    """One column with each method has its own network; with all, this would take a quarter hour."""
    return re.fullmatch(r"table1-cross-device-cifar10-[a-z]+\.toml", name)


@pytest.fixture
def network(monkeypatch, request):
    if not runs_as_it_is(request.node.callspec.params["name"]):
        thin = replace(MODELS["resnet18"], features=thin_resnet18)
        monkeypatch.setitem(MODELS.entries, "resnet18", thin)


@pytest.mark.parametrize("name", NAMES)
def test_it_runs(home, tmp_path, network, name):
    values = as_flower_reads_it(name)
    small = {"data-dir": str(home), "output-dir": str(tmp_path), "run-name": "run"}
    if values["dataset"] == "pacs":
        small["dataset"] = "pacs_64"
    serve({**values, **SMOKE, **small}, clients=4 if values["partition"] == "domain" else 2)
    folder = tmp_path / "run"
    assert read_json(folder / "summary.json")["status"] == "completed"
    (row,) = read_csv(folder / "rounds.csv")
    assert row["failures"] == "0"
    assert 0 <= float(row["accuracy"]) <= 100
    shutil.rmtree(folder)  # a model is 45 MB, and pytest keeps folders of three sessions


def test_the_models_are_the_papers(home):
    for name in NAMES:
        config, _, _ = read_run_config({**as_flower_reads_it(name), "data-dir": str(home)})
        expected = {"organamnist": "lenet", "tissuemnist": "lenet", "pacs": "googlenet"}
        spec = ModelSpec.of(config, open_dataset(config.dataset, str(home)).schema)
        assert spec.architecture == expected.get(config.dataset, "resnet18"), name
