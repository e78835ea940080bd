"""What a method has to show of its own runs, as plain data: the report draws it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fedadb_app.runs.tables import Floats


@dataclass(frozen=True)
class Curves:
    """Curves over rounds in one chart, whose vertical axis begins at 0.

    Attributes
    ----------
    title, unit : str
        What is shown, and in what.
    lines : Mapping[str, tuple[numpy.ndarray, numpy.ndarray]]
        Label -> rounds and values, float64 ``(R,)`` each.
    """

    title: str
    unit: str
    lines: Mapping[str, tuple[Floats, Floats]]


@dataclass(frozen=True)
class ClassImage:
    """An image of a class.

    Attributes
    ----------
    image : torch.Tensor
        Model input, ``(channels, height, width)``.
    label : int
        Its class.
    confidence : str
        Softmax probability of that class.
    """

    image: Tensor
    label: int
    confidence: str


@dataclass(frozen=True)
class MethodSection:
    """A method's section of a run's page.

    Attributes
    ----------
    title, lead : str
        Its heading, and the text below it.
    curves : Sequence[Curves]
        Charts over rounds.
    kind : str
        What each of the images is.
    images : Mapping[int, Sequence[ClassImage]]
        Round -> images, a row each; of many rounds the page shows some.
    notes : Sequence[str]
        What is not there, and why.
    faults : Sequence[str]
        A sentence for each file of the method's that cannot be read.
    """

    title: str
    lead: str = ""
    curves: Sequence[Curves] = ()
    kind: str = ""
    images: Mapping[int, Sequence[ClassImage]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    faults: Sequence[str] = ()
