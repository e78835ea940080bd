"""What the registry knows of a method."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedadb_app.anchors import AnchorSettings
from fedadb_app.config import RunConfig, Settings
from fedadb_app.local_training import Trainer
from fedadb_app.models.classifier import HeadBuilder, single_head
from strategies.server import ServerHalf


def without_anchors(params: Settings) -> None:
    """Say that a method makes no class anchors, whatever its own values."""
    del params


def all_accepted(config: RunConfig, params: Settings) -> None:
    """Refuse nothing that each value's own range allows."""
    del config, params


@dataclass(frozen=True)
class Method:
    """A registered method: both halves, its own values, and where it comes from.

    Attributes
    ----------
    title : str
        As papers write it.
    paper : str
        Authors, venue and year.
    params : type[Settings]
        Its table in the run configuration.
    trainer : type[Trainer]
        The client half.
    server : type[ServerHalf]
        The server half.
    heads : HeadBuilder
        The heads of its model; the first is the one evaluated.
    anchors : Callable
        The method's own values -> how a run of these values makes class anchors; None = it makes
        none.
    refuse : Callable
        (shared values, the method's own) -> nothing, or a `ConfigError` for what the method cannot
        do; the head builder says what it cannot do with a data set's classes and image shape.
    """

    title: str
    paper: str
    params: type[Settings]
    trainer: type[Trainer[Any]]
    server: type[ServerHalf[Any]]
    heads: HeadBuilder = single_head
    anchors: Callable[[Any], AnchorSettings | None] = without_anchors
    refuse: Callable[[RunConfig, Any], None] = all_accepted
