"""What the contract's runs share: every method, the model with BatchNorm, quick rounds."""

from typing import Any

import pytest

from strategies.registry import METHODS

every_method = pytest.mark.parametrize("name", list(METHODS))

TELLING = ("feddyn", "fedgela", "fedexp", "fedsol", "scaffold", "moon", "fedvls", "fedadb")
"""Methods that differ most in what they do with a client's data, its net or its state."""

telling_methods = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in TELLING else pytest.mark.slow) for n in METHODS]
)
"""Every method, but the others only where slow tests are asked for."""

SMALL_RESNET = "resnet8"
"""A model with BatchNorm and shortcuts. The promises are about its layers, not about its width."""

QUICK: dict[str, Any] = {
    "device": "cpu",
    "num-server-rounds": 2,
    "local-epochs": 1,
    "batch-size": 16,
    "learning-rate": 0.05,
    "fedadb.anchor-steps": 3,
}
