"""What the registry knows of a method."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedadb_app.aggregation import ClientUpdate
from fedadb_app.anchors import AnchorSettings
from fedadb_app.config import RunConfig, Settings
from fedadb_app.local_training import Trainer
from fedadb_app.models.classifier import HeadBuilder, ImageClassifier, single_head
from fedadb_app.runs.reader import RunFiles
from fedadb_app.runs.sections import MethodSection
from strategies.server import ServerHalf
from strategies.tunable import Space

if TYPE_CHECKING:  # they know a method
    from strategies.round import Round
    from strategies.server_run import ServerRun


def without_anchors(params: Settings) -> None:
    """Say that a method makes no class anchors, whatever its own values."""
    del params


def nothing_to_report(run: RunFiles) -> None:
    """Have no section in a run's page."""
    del run


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
    only_sgd : str
        Why clients can train with SGD alone, where they can; empty = with any optimiser.
    refuse : Callable
        (shared values, the method's own) -> nothing, or a `ConfigError` for what the method cannot
        do; the head builder says what it cannot do with a data set's classes and image shape.
    report : Callable
        A run's files -> the method's section of the run's page; None = it has nothing to show.
    train_in_one_place : Callable or None
        (run, K, the round, images a pass) -> the model that the server has trained itself; None =
        the round's participants train.
    take_up : Callable or None
        (the received model, a client's state) -> nothing; makes of the model what the client
        evaluates. None = the received model is evaluated.
    captions : Mapping[str, str]
        Name in ``diagnostics.csv`` -> what it is, for the names that the method writes.
    tunable : Space
        Which of its own values `fedadb tune` chooses: those that its paper tunes.
    """

    title: str
    paper: str
    params: type[Settings]
    trainer: type[Trainer[Any]]
    server: type[ServerHalf[Any]]
    heads: HeadBuilder = single_head
    anchors: Callable[[Any], AnchorSettings | None] = without_anchors
    only_sgd: str = ""
    refuse: Callable[[RunConfig, Any], None] = all_accepted
    report: Callable[[RunFiles], MethodSection | None] = nothing_to_report
    train_in_one_place: "Callable[[ServerRun, int, Round, int], ClientUpdate] | None" = None
    take_up: Callable[[ImageClassifier, Mapping[str, Tensor]], None] | None = None
    captions: Mapping[str, str] = field(default_factory=dict)
    tunable: Space = field(default_factory=dict)
