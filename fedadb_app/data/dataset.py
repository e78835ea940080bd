"""What the registry knows of a data set."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fedadb_app.data.arrays import Shape
from fedadb_app.data.intake.options import IntakeOptions
from fedadb_app.data.preparation import CENTRED, Preparation
from fedadb_app.data.prepared import Source

Locate: TypeAlias = Callable[[str, Path, bool], Source]
"""(name, folder of official files, whether to download) -> the images on this machine.

Raises `DataError` where they are not there."""

TakeIn: TypeAlias = Callable[[str, IntakeOptions], Source]
"""(path, what is decided about the images) -> the images on this machine; raises likewise."""


@dataclass(frozen=True)
class Dataset:
    """A registered data set.

    Attributes
    ----------
    title : str
        As papers write it.
    paper : str
        Authors, venue and year.
    locate : Locate or None
        Finds its images on this machine; None where nobody but the nodes has some, or the user.
    image_shape : tuple[int, int, int] or None
        Channels, height, width, where they are known before any file is opened.
    num_classes : int or None
        C, likewise.
    preparation : Preparation
        How pixels become model input, and how they are augmented.
    take_in : TakeIn or None
        Finds a user's own images, of any kind and size, instead.
    licence : str
        As its publisher names it; ``""``: not known to us.
    """

    title: str
    paper: str
    locate: Locate | None
    image_shape: Shape | None = None
    num_classes: int | None = None
    preparation: Preparation = CENTRED
    take_in: TakeIn | None = None
    licence: str = ""
