"""The files in configs/: section 5.1 as the studies have it, valid for Flower and every method."""

import re
from functools import cache

import numpy as np
import pytest
import torch
from flwr.cli.run.run import parse_config_args
from helpers import REPOSITORY, read_csv, read_json, serve
from medmnist.info import INFO
from official_formats import make_pacs

from fedadb_app.assignments import app_defaults
from fedadb_app.data.arrays import ImageSchema
from fedadb_app.data.clients import partition_of
from fedadb_app.data.sources import open_dataset
from fedadb_app.models.classifier import ModelSpec, build_classifier
from fedadb_app.reproduction.catalogue import STUDIES, TABLE_1_METHODS, study_of
from fedadb_app.reproduction.settings import DATASETS, SCENARIOS, setting_of
from strategies.registry import METHODS, read_run_config

FOLDER = REPOSITORY / "configs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.toml"))
DEFAULTS = app_defaults(REPOSITORY)
FULL = [study_of(item, "full") for item in STUDIES]


def as_flower_reads_it(name):
    """Do what `flwr run --run-config configs/NAME.toml` does with the file."""
    values = parse_config_args([str(FOLDER / f"{name}.toml")])
    assert values.keys() <= DEFAULTS.keys()
    return values


def test_there_is_one_for_every_scenario_and_data_set_of_the_paper():
    used = {f"{e.setting.scenario}-{e.setting.dataset}" for s in FULL for e in s.entries}
    assert set(NAMES) == used
    assert len(NAMES) == 15  # seven data sets in both scenarios, and PACS


@pytest.mark.parametrize("name", NAMES)
def test_a_file_says_what_the_studies_run(name):
    scenario, dataset = re.fullmatch(r"(cross-[a-z]+)-(\w+)", name).groups()
    assert as_flower_reads_it(name) == setting_of("full", scenario, dataset).values


@pytest.mark.parametrize("name", NAMES)
def test_the_first_lines_say_what_it_is_and_how_it_is_run(name):
    text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    values = as_flower_reads_it(name)
    scenario = name.removesuffix(f"-{values['dataset']}")
    clients, fraction = SCENARIOS[scenario]
    first, federation, shown = text.splitlines()[:3]
    assert first == f"# {DATASETS[values['dataset']]}, {scenario}: section 5.1 of the FedADB paper."
    assert f"K = {clients} clients (num-supernodes={clients})" in federation
    assert f"rho = {fraction}" in federation
    tables, _, figures = shown.removeprefix("# In the paper: ").partition(" and ")
    named = {f"table{n}" for n in re.findall(r"\d", tables)}
    named |= {f"figure{n}" for n in re.findall(r"\d", figures)}
    assert named == {
        study.item
        for study in FULL
        if any(
            (e.setting.scenario, e.setting.dataset) == (scenario, values["dataset"])
            for e in study.entries
        )
    }
    assert f"fedadb run -c configs/{name}.toml" in text
    assert f"flwr run . --stream --run-config configs/{name}.toml" in text
    assert f"--federation-config 'num-supernodes={clients} client-resources-num-cpus=1'" in text


@pytest.mark.parametrize("name", NAMES)
def test_an_open_choice_of_normalisation_is_said_where_the_net_has_such_layers(name):
    text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    assert ('norm="batch-local"' in text) == ("ResNet-18" in text)
    assert "norm" not in as_flower_reads_it(name)  # until it is decided, the default


SCHEMAS = {
    "svhn": ((3, 32, 32), 10),
    "cinic10": ((3, 32, 32), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "pacs": ((3, 224, 224), 7),
    **{
        flag: ((INFO[flag]["n_channels"], 28, 28), len(INFO[flag]["label"]))
        for flag in ("organamnist", "pathmnist", "tissuemnist")
    },
}
"""Data set -> its images' shape and number of classes."""

MODELS = {"organamnist": "lenet", "tissuemnist": "lenet", "pacs": "googlenet"}
"""The paper's, where it is not ResNet-18."""


@cache
def shape_of_logits(spec, method):
    """Build a model, without memory for its weights, and look at what it returns."""
    with torch.device("meta"):
        model = build_classifier(spec, 0, METHODS[method].heads)
        images = torch.empty(2, *spec.image_shape)
    return tuple(model.eval()(images).shape)


@pytest.mark.parametrize("method", TABLE_1_METHODS)
@pytest.mark.parametrize("name", NAMES)
def test_every_method_takes_it_and_builds_the_papers_model(name, method):
    values = {**DEFAULTS, **as_flower_reads_it(name), "strategy": method}
    config, _, _ = read_run_config(values)
    shape, classes = SCHEMAS[config.dataset]
    schema = ImageSchema(tuple(map(str, range(classes))), shape)
    spec = ModelSpec.of(config, schema)
    assert spec.architecture == MODELS.get(config.dataset, "resnet18")
    assert shape_of_logits(spec, method) == (2, classes)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Few images of three of the data sets, in their official formats."""
    home = tmp_path_factory.mktemp("official")
    rng = np.random.default_rng(0)
    make_pacs(home, 10, ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"))
    for flag in ("organamnist", "pathmnist"):
        (channels, *size), classes = SCHEMAS[flag]
        shape = (*size, channels) if channels == 3 else tuple(size)
        arrays = {}
        for part, count in (("train", 24), ("test", classes)):
            arrays[f"{part}_images"] = rng.integers(0, 256, (count, *shape), np.uint8)
            arrays[f"{part}_labels"] = np.arange(count)[:, None] % classes
        np.savez(home / f"{flag}.npz", **arrays)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        yield home
    open_dataset.cache_clear()
    partition_of.cache_clear()


SMOKE = {
    "num-server-rounds": 1,
    "local-epochs": 1,
    "batch-size": 4,
    "fraction-train": 1.0,
    "min-nodes": 1,
    "fedadb.anchor-steps": 1,
    "device": "cpu",
}


@pytest.mark.parametrize(
    ("name", "clients", "dataset"),
    [
        ("cross-device-organamnist", 2, "organamnist"),
        pytest.param("cross-silo-pathmnist", 2, "pathmnist", marks=pytest.mark.slow),
        # the smallest images that InceptionV1 takes
        pytest.param("cross-silo-pacs", 4, "pacs_64", marks=pytest.mark.slow),
    ],
)
def test_one_of_each_model_runs(home, tmp_path, name, clients, dataset):
    places = {"data-dir": str(home), "output-dir": str(tmp_path), "run-name": "run"}
    small = {**SMOKE, **places, "dataset": dataset}
    serve({**DEFAULTS, **as_flower_reads_it(name), **small}, clients=clients)
    folder = tmp_path / "run"
    assert read_json(folder / "summary.json")["status"] == "completed"
    (row,) = read_csv(folder / "rounds.csv")
    assert (row["failures"], row["clients"]) == ("0", str(clients))
    assert 0 <= float(row["accuracy"]) <= 100
