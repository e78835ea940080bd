"""What the registry knows of a method."""

from dataclasses import dataclass

from fedadb_app.config import Settings
from fedadb_app.local_training import Trainer
from fedadb_app.models.classifier import HeadBuilder, single_head
from strategies.base import FederatedStrategy


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
    strategy : type[FederatedStrategy]
        The server half.
    heads : HeadBuilder
        The heads of its model; the first is the one evaluated.
    """

    title: str
    paper: str
    params: type[Settings]
    trainer: type[Trainer]  # type: ignore[type-arg]
    strategy: type[FederatedStrategy]  # type: ignore[type-arg]
    heads: HeadBuilder = single_head
