"""What a user may decide about images that come in; everything else is refused or the same."""

from dataclasses import dataclass
from typing import Literal

from fedadb_app.data.arrays import Shape
from fedadb_app.data.intake.intensity import Percentiles, Window, parse_intensity

Resize = Literal["fit", "crop", "stretch"]
Frames = Literal["refuse", "each"]
Transparency = Literal["black", "white", "refuse"]


@dataclass(frozen=True)
class IntakeOptions:
    """Decisions about the images of one source.

    Attributes
    ----------
    class_names : tuple[str, ...] or None
        The federation's, index = label; None: those that are found.
    image_shape : tuple[int, int, int] or None
        Channels, height and width to make of every image; None: that of the first, which all
        must have.
    resize : {"fit", "crop", "stretch"}
        How an image of another size gets there.
    intensity : str
        What is black and what white in images of more than 8 bits: ``"0,4095"`` or
        ``"1%,99%"``; ``""``: what a file itself says, else they are refused.
    frames : {"refuse", "each"}
        What becomes of a file of several images.
    transparency : {"black", "white", "refuse"}
        What transparent pixels are laid on.
    ignore : str
        Names of files and folders that may be left out, as in ``"*.xml,Thumbs.db"``.
    patient_pattern : str
        Where a file's name says whose it is, as in ``"{patient}_*"``; ``""``: nowhere.
    """

    class_names: tuple[str, ...] | None = None
    image_shape: Shape | None = None
    resize: Resize = "fit"
    intensity: str = ""
    frames: Frames = "refuse"
    transparency: Transparency = "black"
    ignore: str = ""
    patient_pattern: str = ""

    def __post_init__(self) -> None:
        """Refuse, with a `ConfigError`, an intensity that cannot be understood."""
        parse_intensity(self.intensity)

    @property
    def ignored(self) -> tuple[str, ...]:
        """The patterns of `ignore`."""
        return tuple(word.strip() for word in self.ignore.split(",") if word.strip())

    @property
    def scale(self) -> Window | Percentiles | None:
        """What `intensity` says."""
        return parse_intensity(self.intensity)
