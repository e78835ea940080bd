"""The run configuration: names, defaults, ranges, and the sentence a wrong value gets."""

import math
import tomllib
from typing import Any

import pytest
from helpers import REPOSITORY
from pydantic import ValidationError

from fedadb_app.config import RunConfig
from fedadb_app.errors import ConfigError
from strategies.registry import METHODS, read_run_config

DESIGN = {
    "strategy": "fedadb",
    "seed": 0,
    "dataset": "digits",
    "data-dir": "",
    "partition": "dirichlet",
    "alpha": 0.1,
    "num-server-rounds": 20,
    "fraction-train": 1.0,
    "fraction-evaluate": 0.0,
    "model": "auto",
    "norm": "batch",
    "local-epochs": 5,
    "batch-size": 128,
    "learning-rate": 0.01,
    "learning-rate-decay": 0.99,
    "momentum": 0.9,
    "weight-decay": 1e-5,
    "augment": False,
    "device": "auto",
    "precision": "fp32",
    "evaluate": "server",
    "evaluate-every": 1,
    "output-dir": "",
    "run-name": "",
    "checkpoint-every": 0,
    "resume-from": "",
    "node-timeout": 120,
    "round-timeout": 3600,
    "min-success-fraction": 0.5,
    "client-state-dir": "",
}
"""The table "Run configuration" of DESIGN.md."""

ADDED = {
    "min-nodes",
    "max-examples",
    "max-relative-update",
    "classes",
    "image-shape",
    "classes-per-client",
    "snapshot-every",
}
OTHERWISE = {"fraction-evaluate": 1.0}
"""Where docs/decisions.md departs from that table."""

BASELINES_13 = {
    "anchors-per-class": 1,
    "anchor-steps": 100,
    "anchor-learning-rate": 1.0,
    "anchor-l2": 1e-4,
    "anchor-noise": 1.0,
    "anchor-label": "hard",
    "use-anchors": True,
    "use-lcb": True,
    "beta": "dynamic",
}
"""FedADB's open choices with a key in DESIGN.md; the values are those of BASELINES.md, 13."""


def refusal(values: dict[str, Any]) -> str:
    """The sentence that the values get; it is one, and speaks of nothing but them."""
    with pytest.raises(ConfigError) as caught:
        read_run_config(values)
    text = str(caught.value)
    assert "\n" not in text
    assert "pydantic" not in text
    assert "validation error" not in text
    return text


# --- names and defaults ---------------------------------------------------------------------


def test_defaults_are_those_of_the_design():
    defaults = RunConfig.defaults()
    assert DESIGN.keys() <= defaults.keys()
    there = DESIGN.keys() & defaults.keys()
    expected = {**DESIGN, **OTHERWISE}
    assert {key: defaults[key] for key in there} == {key: expected[key] for key in there}


def test_defaults_of_fedadb_are_the_decided_choices():
    defaults = METHODS["fedadb"].params.defaults()
    assert {key: defaults.get(key) for key in BASELINES_13} == BASELINES_13


def test_pyproject_holds_exactly_the_defaults():
    """`flwr run` refuses every key that is not in pyproject, and takes its values from there."""
    table = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    own = {name: METHODS[name].params.defaults() for name in METHODS}
    expected = {**RunConfig.defaults(), **{name: keys for name, keys in own.items() if keys}}
    assert table["config"] == expected
    for key, value in RunConfig.defaults().items():
        assert type(table["config"][key]) is type(value), key
    for name, keys in own.items():
        for key, value in keys.items():
            assert type(table["config"][name][key]) is type(value), f"{name}.{key}"


def test_what_flower_hands_over_by_default_is_accepted():
    flat: dict[str, Any] = RunConfig.defaults()
    for name, method in METHODS.items():
        flat |= {f"{name}.{key}": value for key, value in method.params.defaults().items()}
    config, method, params = read_run_config(flat)
    assert config == RunConfig()
    assert method is METHODS["fedadb"]
    assert params == METHODS["fedadb"].params()


def test_an_empty_configuration_is_the_default_one():
    assert read_run_config({})[0] == RunConfig()


def test_values_reach_their_fields():
    config, method, params = read_run_config(
        {"strategy": "fedadb", "learning-rate": 0.5, "fedadb.anchor-steps": 7, "run-name": "a.B_1-"}
    )
    assert (config.learning_rate, config.run_name) == (0.5, "a.B_1-")
    assert method is METHODS["fedadb"]
    assert params.anchor_steps == 7


def test_a_method_gets_its_own_values_only():
    _, method, params = read_run_config({"strategy": "fedavg", "fedadb.anchor-steps": 7})
    assert method is METHODS["fedavg"]
    assert type(params) is METHODS["fedavg"].params


def test_a_checked_configuration_cannot_be_changed():
    with pytest.raises(ValidationError):
        RunConfig().seed = 1


# --- unknown names --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("lerning-rate", "learning-rate"),
        ("learning_rate", "learning-rate"),
        ("num-rounds", "num-server-rounds"),
        ("fedadb.anchor-step", "fedadb.anchor-steps"),
        ("fedadb.anchor_steps", "fedadb.anchor-steps"),
        ("anchor-steps", "fedadb.anchor-steps"),
    ],
)
def test_an_unknown_key_gets_the_nearest(key, nearest):
    text = refusal({key: 1})
    assert f'"{key}"' in text
    assert f'did you mean "{nearest}"' in text


@pytest.mark.parametrize("key", ["qqqqqqqq", "", ".", "fedadb.", ".beta"])
def test_an_unknown_key_like_no_other(key):
    assert f'unknown key "{key}"' in refusal({key: 1})


def test_a_method_is_no_key_and_has_no_others_keys():
    assert '"fedadb"' in refusal({"fedadb": 1})
    assert '"fedavg.beta"' in refusal({"fedavg.beta": "0.5"})


def test_an_unknown_strategy_gets_the_nearest_and_the_list():
    text = refusal({"strategy": "fedabd"})
    assert 'strategy="fedabd"' in text
    assert 'did you mean "fedadb"' in text
    assert all(name in text for name in METHODS)


# --- wrong types ----------------------------------------------------------------------------

WHOLE = [
    "seed",
    "classes-per-client",
    "num-server-rounds",
    "local-epochs",
    "batch-size",
    "evaluate-every",
    "checkpoint-every",
    "snapshot-every",
    "min-nodes",
    "max-examples",
    "fedadb.anchors-per-class",
    "fedadb.anchor-steps",
]
NUMBER = [
    "alpha",
    "fraction-train",
    "fraction-evaluate",
    "max-relative-update",
    "learning-rate",
    "learning-rate-decay",
    "momentum",
    "weight-decay",
    "node-timeout",
    "round-timeout",
    "min-success-fraction",
    "fedadb.anchor-learning-rate",
    "fedadb.anchor-l2",
    "fedadb.anchor-noise",
]
TEXT = [
    "resume-from",
    "client-state-dir",
    "strategy",
    "dataset",
    "data-dir",
    "classes",
    "image-shape",
    "output-dir",
    "run-name",
    "fedadb.beta",
]
CHOICE = ["partition", "model", "norm", "device", "precision", "evaluate", "fedadb.anchor-label"]
SWITCH = ["augment", "fedadb.use-anchors", "fedadb.use-lcb"]


def test_the_lists_above_name_every_key():
    own = {f"fedadb.{key}" for key in BASELINES_13}
    listed = {*WHOLE, *NUMBER, *TEXT, *CHOICE, *SWITCH}
    assert DESIGN.keys() | own | ADDED == listed


@pytest.mark.parametrize("key", WHOLE)
@pytest.mark.parametrize("value", [True, False, "3", 3.0, 2.5, math.nan])
def test_no_whole_number(key, value):
    text = refusal({key: value})
    shown = {True: "true", "3": '"3"', 2.5: "2.5"}.get(value, "")
    assert text.startswith(f"{key}={shown}")
    assert "whole number" in text


@pytest.mark.parametrize("key", NUMBER)
@pytest.mark.parametrize("value", [True, "0.1", "nan", math.nan, math.inf, -math.inf])
def test_no_number(key, value):
    text = refusal({key: value})
    assert text.startswith(f"{key}=")
    assert "finite number" in text


@pytest.mark.parametrize("key", NUMBER)
def test_a_whole_number_is_a_number(key):
    """TOML writes 1 for 1.0; the value is a float from there on."""
    _, dot, name = key.rpartition(".")
    value = 0 if key == "momentum" else 1
    config, _, params = read_run_config({key: value})
    found = getattr(params if dot else config, name.replace("-", "_"))
    assert type(found) is float
    assert found == value


@pytest.mark.parametrize("key", [*TEXT, *CHOICE])
@pytest.mark.parametrize("value", [1, 0.5, True])
def test_no_text(key, value):
    assert refusal({key: value}).startswith(f"{key}=")


@pytest.mark.parametrize("key", SWITCH)
@pytest.mark.parametrize("value", [1, 0, "true", 0.0])
def test_no_switch(key, value):
    assert "true or false" in refusal({key: value})


@pytest.mark.parametrize("key", CHOICE)
def test_a_choice_names_the_others(key):
    table = METHODS["fedadb"].params.defaults() if "." in key else RunConfig.defaults()
    text = refusal({key: "nonsense"})
    assert f'{key}="nonsense"' in text
    assert f'"{table[key.removeprefix("fedadb.")]}"' in text


# --- ranges ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "outside", "inside"),
    [
        ("seed", [-1, 2**63], [0, 2**63 - 1]),
        ("alpha", [0.0, -0.1], [1e-9, 1e9]),
        ("num-server-rounds", [0, -1], [1]),
        ("fraction-train", [0.0, -0.5, 1.0001], [1e-6, 1.0]),
        ("local-epochs", [0, -1], [1]),
        ("batch-size", [0, -1], [1]),
        ("learning-rate", [0.0, -0.1], [1e-12]),
        ("learning-rate-decay", [0.0, -0.1, 1.01], [1e-6, 1.0]),
        ("momentum", [-0.1, 1.0, 1.5], [0.0, 0.999]),
        ("weight-decay", [-1e-9], [0.0]),
        ("evaluate-every", [0, -1], [1, 10**6]),
        ("min-nodes", [0, -1], [1]),
        ("fraction-evaluate", [0.0, -0.5, 1.0001], [1e-6, 1.0]),
        ("max-examples", [0, -1], [1, 10**12]),
        ("max-relative-update", [-0.1], [0.0, 1e9]),
        ("node-timeout", [0.0, -1.0], [0.001]),
        ("round-timeout", [0.0, -1.0], [0.001]),
        ("min-success-fraction", [-0.1, 1.1], [0.0, 1.0]),
        ("fedadb.anchors-per-class", [0, -1], [1]),
        ("fedadb.anchor-steps", [-1], [0]),
        ("fedadb.anchor-learning-rate", [0.0, -1.0], [1e-9]),
        ("fedadb.anchor-l2", [-1e-9], [0.0]),
        ("fedadb.anchor-noise", [-1e-9], [0.0]),
    ],
)
def test_ranges(key, outside, inside):
    for value in inside:
        read_run_config({key: value})
    for value in outside:
        text = refusal({key: value})
        assert text.startswith(f"{key}={value}")
        assert "least" in text or "greater" in text or "less" in text or "most" in text


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:12", "mps"])
def test_devices(device):
    assert read_run_config({"device": device})[0].device == device


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:x", "cuda:0 ", "CPU", "cpu\n"])
def test_no_devices(device):
    assert "cuda:N" in refusal({"device": device})


@pytest.mark.parametrize("beta", ["dynamic", "0", "0.5", "2", "1e-3"])
def test_beta(beta):
    assert read_run_config({"fedadb.beta": beta})[2].beta == beta


@pytest.mark.parametrize("beta", ["", "Dynamic", "-0.1", "nan", "inf", "half"])
def test_no_beta(beta):
    text = refusal({"fedadb.beta": beta})
    assert f'fedadb.beta="{beta}"' in text
    assert "dynamic" in text


def test_a_data_set_has_a_name():
    assert "dataset" in refusal({"dataset": ""})


@pytest.mark.parametrize(
    ("key", "value"),
    [("fedadb.anchor-steps", -1), ("fedadb.beta", "x"), ("fedadb.anchor-noise", math.nan)],
)
def test_the_tables_of_other_methods_are_checked_too(key, value):
    """A typo in a table that another run of the sweep will use should show now."""
    assert key in refusal({"strategy": "fedavg", key: value})


# --- folders --------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["data-dir", "output-dir"])
@pytest.mark.parametrize("path", ["runs", "./runs", "../runs", "~nobody-of-that-name/runs"])
def test_a_relative_folder_is_refused(key, path):
    text = refusal({key: path})
    assert f'{key}="{path}"' in text
    assert "absolute" in text


@pytest.mark.parametrize("key", ["data-dir", "output-dir"])
@pytest.mark.parametrize("path", ["", "/somewhere", "~/somewhere", "~"])
def test_an_absolute_folder_is_taken(key, path):
    read_run_config({key: path})


@pytest.mark.parametrize("name", [".", "..", "a/b", "/a", "a\\b", "a b", "ü", "a\n"])
def test_a_run_name_is_a_folder_name(name):
    assert "run-name" in refusal({"run-name": name})


# --- the learning rate's course -------------------------------------------------------------


def test_learning_rate_of_each_round():
    config = RunConfig(learning_rate=0.5, learning_rate_decay=0.5)
    assert [config.learning_rate_at(t) for t in (1, 2, 3)] == [0.5, 0.25, 0.125]


# --- a federation of nodes with their own data ----------------------------------------------

NODES = {"dataset": "nodes", "classes": "a,b", "image-shape": "3x28x28", "evaluate": "clients"}


def test_class_names_are_a_text_with_commas():
    config, _, _ = read_run_config({})
    assert (config.class_names, config.own_data) == ((), False)
    config, _, _ = read_run_config({**NODES, "classes": "adipose, lymph node ,mucus"})
    assert (config.class_names, config.own_data) == (("adipose", "lymph node", "mucus"), True)


@pytest.mark.parametrize("classes", ["a", "a,,b", "a,b,", ",", " ", "a,b,a", "a, a"])
def test_class_names_that_are_none(classes):
    assert refusal({**NODES, "classes": classes}).startswith(f'classes="{classes}" is not allowed')


def test_an_image_shape_is_three_numbers():
    config, _, _ = read_run_config(NODES)
    assert config.image_size == (3, 28, 28)
    assert read_run_config({**NODES, "image-shape": "1x224x32"})[0].image_size == (1, 224, 32)


@pytest.mark.parametrize("shape", ["28x28", "28x28x3", "2x28x28", "3x0x28", "3x28x28x1", "3×28×28"])
def test_an_image_shape_that_is_none(shape):
    text = refusal({**NODES, "image-shape": shape})
    assert text.startswith(f'image-shape="{shape}"')
    assert '"3x28x28"' in text


@pytest.mark.parametrize("dataset", ["nodes", "digits"])
@pytest.mark.parametrize("missing", ["classes", "image-shape"])
def test_what_own_data_have_in_common_is_said_completely(dataset, missing):
    values = {key: value for key, value in NODES.items() if key != missing}
    assert 'need both classes="..." and image-shape="..."' in refusal(
        {**values, "dataset": dataset}
    )
    assert read_run_config({**NODES, "dataset": dataset})


def test_only_nodes_have_data_and_nothing_is_said_of_them():
    assert 'as dataset="nodes" expects' in refusal({"dataset": "nodes", "evaluate": "none"})


@pytest.mark.parametrize("evaluate", ["server", "both"])
def test_without_data_the_server_cannot_evaluate(evaluate):
    text = refusal({**NODES, "evaluate": evaluate})
    assert text.startswith(f'evaluate="{evaluate}" needs a data set on the server')
    assert 'use evaluate="clients" or "none"' in text


@pytest.mark.parametrize(
    ("evaluate", "server", "clients"),
    [
        ("server", True, False),
        ("clients", False, True),
        ("both", True, True),
        ("none", False, False),
    ],
)
def test_who_evaluates(evaluate, server, clients):
    config = read_run_config({"evaluate": evaluate})[0]
    assert (config.server_evaluates, config.clients_evaluate) == (server, clients)


@pytest.mark.parametrize("privacy", ["central", "local"])
@pytest.mark.parametrize("evaluate", ["clients", "both"])
def test_what_clients_count_is_not_released_without_noise(privacy, evaluate):
    with pytest.raises(ConfigError, match=r"without noise: use \"server\" or \"none\""):
        read_run_config({"privacy": privacy, "evaluate": evaluate})
