"""What `fedadb tune` may choose of a method, each value within which range."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedadb_app.settings import Scalar


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; with `log` each factor is as likely."""

    low: float
    high: float
    log: bool = True

    def __contains__(self, value: Scalar) -> bool:
        """Whether a value may be chosen."""
        return not isinstance(value, str) and self.low <= value <= self.high


@dataclass(frozen=True)
class OneOf:
    """Values of which one is taken."""

    values: tuple[Scalar, ...]

    def __contains__(self, value: Scalar) -> bool:
        """Whether a value may be chosen."""
        return value in self.values


Space = Mapping[str, Range | OneOf]
"""Key, as a user types it -> what it may be; its default is part of it."""

LEARNING_RATE = Range(1e-3, 0.1)
"""The clients' learning rate, which is tuned for every method."""
