"""The run configuration: names, defaults, unknown keys, and what excludes what."""

import tomllib
from typing import Any

import pytest
from helpers import REPOSITORY
from pydantic import ValidationError
from run_configurations import BASELINES_13, DESIGN, OTHERWISE, refusal

from fedadb_app.config import RunConfig
from fedadb_app.errors import ConfigError
from strategies.registry import METHODS, read_run_config


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


def test_learning_rate_of_each_round():
    config = RunConfig(learning_rate=0.5, learning_rate_decay=0.5)
    assert [config.learning_rate_at(t) for t in (1, 2, 3)] == [0.5, 0.25, 0.125]


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
