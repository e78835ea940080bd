"""Figures 2 and 3: which keys are varied, each alone, and over which values."""

from collections.abc import Mapping, Sequence

from fedadb_app.config import Scalar
from fedadb_app.reproduction.entries import Entry
from fedadb_app.reproduction.settings import DEVICE, Setting

SWEEPS: Mapping[str, tuple[Scalar, tuple[Scalar, ...]]] = {
    "fedadb.anchors-per-class": (1, (1, 2, 5)),
    "local-epochs": (5, (1, 5, 10)),
    "learning-rate": (0.01, (0.003, 0.01, 0.03)),
    "fedadb.anchor-steps": (100, (25, 100, 400)),
    "fedadb.anchor-learning-rate": (1.0, (0.1, 1.0, 10.0)),
    "fedadb.anchor-l2": (1e-4, (0.0, 1e-4, 0.01)),
    "fedadb.anchor-noise": (1.0, (0.1, 1.0, 2.0)),
}
"""Key -> default, and the values tried. The paper's own values stand in its pictures only."""

BASELINE = "fedavg"
"""Beside which Figure 2 shows FedADB: without default, and a line where it has no such value."""

FIGURE_2 = ("fedadb.anchors-per-class", "local-epochs", "learning-rate")
FIGURE_3 = tuple(key for key in SWEEPS if key.startswith("fedadb.anchor-"))


def has_key(method: str, key: str) -> bool:
    """Whether a key is one of a method's run configuration: shared by all, or in its own table."""
    table = key.rpartition(".")[0]
    return table in ("", method)


def sweep_entries(
    item: str, base: Setting, keys: Sequence[str], methods: Sequence[str]
) -> list[Entry]:
    """Return an entry per key, value and method.

    A method that has no such key is run with the default alone: one point, which is a line.
    """
    return [
        Entry(
            f"{key}={value}",
            method,
            base if value == default else base.changed(key, value),
            method,
            0.1,
            (item, DEVICE, f"{key}={value}", method),
        )
        for key in keys
        for default, values in (SWEEPS[key],)
        for value in values
        for method in methods
        if has_key(method, key) or value == default
    ]
