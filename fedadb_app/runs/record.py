"""What is recorded of one round: a row of ``rounds.csv``, and its lines in further tables."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

ROUNDS, CLASS_ACCURACY, DIAGNOSTICS, METRICS = TABLES = (
    "rounds.csv",
    "class_accuracy.csv",
    "diagnostics.csv",
    "metrics.csv",
)
"""The tables of a run's folder."""

DIAGNOSTICS_HEADER = ("round", "name", "value")
METRICS_HEADER = ("round", "part", "metric", "class", "value")

Part = Literal["test", "val", "clients"]
"""Which images a metric is of: the server's test or validation part, or what clients hold out."""

_OWN_FILE = {"column": False}  # kept in a file of its own, not in rounds.csv
_METHOD = {"filled by": "a diagnostic of this name"}


@dataclass
class RoundRecord:
    """One row of ``rounds.csv``; accuracy in percent, sizes in bytes, times in seconds.

    Attributes
    ----------
    class_accuracy : Sequence[float]
        Percent, one per class; empty where nothing was evaluated.
    diagnostics : dict[str, float]
        What else was found, by name.
    metrics : dict[Part, list[tuple[str, int or None, float]]]
        Per part: name, class label (None: of all its images) and value.
    """

    round: int
    accuracy: float = math.nan
    loss: float = math.nan
    learning_rate: float = math.nan
    anchor_quality: float = field(default=math.nan, metadata=_METHOD)
    clients: int = 0
    failures: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    seconds_anchors: float = 0.0
    seconds_train: float = 0.0
    seconds_aggregate: float = 0.0
    seconds_evaluate: float = 0.0
    epsilon: float = math.nan
    class_accuracy: Sequence[float] = field(default=(), metadata=_OWN_FILE)
    diagnostics: dict[str, float] = field(default_factory=dict, metadata=_OWN_FILE)
    metrics: dict[Part, list[tuple[str, int | None, float]]] = field(
        default_factory=dict, metadata=_OWN_FILE
    )

    def add(self, found: Mapping[str, float]) -> None:
        """Record what a method's server half found; one named as a column of its own goes there.

        Not for what clients report: a name that a client chooses must not become a column.
        """
        columns = {f.name for f in fields(self) if f.metadata == _METHOD}
        for name, value in found.items():
            if name in columns:
                setattr(self, name, value)
            else:
                self.diagnostics[name] = value

    def row(self) -> list[str]:
        """Return the cells as text; an unknown value is an empty cell."""
        return [cell(name, getattr(self, name)) for name in self.header()]

    def class_row(self) -> list[str]:
        """Return the round and a cell per class; nothing where no class was evaluated."""
        cells = [cell("accuracy", accuracy) for accuracy in self.class_accuracy]
        return [str(self.round), *cells] if cells else []

    def diagnostic_rows(self) -> list[list[str]]:
        """Return the round, name and value of each diagnostic, by name."""
        found = sorted(self.diagnostics.items())
        return [[str(self.round), name, f"{value:.6g}"] for name, value in found]

    def metric_rows(self, class_names: Sequence[str]) -> list[list[str]]:
        """Return a row of ``metrics.csv`` per metric of each part; of one unknown without value."""
        return [
            [
                str(self.round),
                part,
                name,
                "" if label is None else class_names[label],
                cell("", value),
            ]
            for part, values in self.metrics.items()
            for name, label, value in values
        ]

    @classmethod
    def header(cls) -> list[str]:
        """Return the column names."""
        return [f.name for f in fields(cls) if f.metadata != _OWN_FILE]


def cell(column: str, value: float) -> str:
    """Return a value as its column shows it: two decimals of an accuracy, three of seconds."""
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return ""
    if column == "accuracy":
        return f"{value:.2f}"
    return f"{value:.3f}" if column.startswith("seconds") else f"{value:.6g}"
