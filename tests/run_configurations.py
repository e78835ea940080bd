"""The keys of a run configuration as the design lists them, and what a wrong value gets."""

from typing import Any

import pytest

from fedadb_app.errors import ConfigError
from strategies.registry import read_run_config

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
    "robust",
    "trim-share",
    "classes",
    "image-shape",
    "classes-per-client",
    "feature-noise",
    "patient-pattern",
    "snapshot-every",
    "validation",
    "select-by",
    "patience",
    "must-reach",
    "personalise-epochs",
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
