"""The run configuration: types, ranges, and the sentence a wrong value gets."""

import math

import pytest
from run_configurations import ADDED, BASELINES_13, DESIGN, refusal

from fedadb_app.config import RunConfig
from strategies.registry import METHODS, read_run_config

WHOLE = [
    "seed",
    "classes-per-client",
    "num-server-rounds",
    "local-epochs",
    "batch-size",
    "evaluate-every",
    "checkpoint-every",
    "snapshot-every",
    "patience",
    "personalise-epochs",
    "min-nodes",
    "max-examples",
    "fedadb.anchors-per-class",
    "fedadb.anchor-steps",
]
NUMBER = [
    "alpha",
    "feature-noise",
    "fraction-train",
    "fraction-evaluate",
    "max-relative-update",
    "trim-share",
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
    "patient-pattern",
    "must-reach",
    "output-dir",
    "run-name",
    "fedadb.beta",
]
CHOICE = [
    "partition",
    "model",
    "norm",
    "device",
    "precision",
    "evaluate",
    "validation",
    "select-by",
    "robust",
    "fedadb.anchor-label",
]
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
    value = 0 if key in {"momentum", "trim-share"} else 1
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


@pytest.mark.parametrize(
    ("key", "outside", "inside"),
    [
        ("seed", [-1, 2**63], [0, 2**63 - 1]),
        ("alpha", [0.0, -0.1], [1e-9, 1e9]),
        ("num-server-rounds", [0, -1], [1]),
        ("fraction-train", [0.0, -0.5, 1.0001], [1e-6, 1.0]),
        ("local-epochs", [0, -1], [1]),
        ("personalise-epochs", [-1], [0]),
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
