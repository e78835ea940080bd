"""``model.json``: what a run's model takes in and gives, so that it can be used elsewhere."""

from pathlib import Path
from typing import Self

from pydantic import ValidationError

from fedadb_app.config import RunConfig
from fedadb_app.data.arrays import ImageSchema
from fedadb_app.data.intake.intensity import Percentiles, parse_intensity
from fedadb_app.data.intake.options import Frames, IntakeOptions, Resize, Transparency
from fedadb_app.data.intake.report import IntakeReport
from fedadb_app.data.preparation import Preparation
from fedadb_app.data.registry import preparation_of
from fedadb_app.runs.atomic import replace
from fedadb_app.runs.text_files import read
from fedadb_app.settings import Settings

MODEL = "model.json"


class ModelFile(Settings):
    """What a model takes in and gives, and how files become what it takes in.

    Attributes
    ----------
    image_shape : tuple[int, int, int]
        Channels, height, width.
    class_names : tuple[str, ...]
        Index = label, and position of the probability.
    mean, std : tuple[float, ...]
        Of a pixel in [0, 1], as in `Preparation`.
    resize, intensity, frames, transparency : str
        As in `IntakeOptions`. Percentages in `intensity` mean that each node found its own values.
    """

    image_shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: Resize
    intensity: str
    frames: Frames
    transparency: Transparency

    @classmethod
    def of(cls, config: RunConfig, schema: ImageSchema, report: IntakeReport | None) -> Self:
        """Return what a run's images have in common, as they were prepared."""
        preparation = preparation_of(config.dataset)
        return cls(
            image_shape=schema.image_shape,
            class_names=schema.class_names,
            mean=preparation.mean,
            std=preparation.std,
            resize=config.resize,
            intensity=(report.window if report is not None else "") or config.intensity,
            frames=config.frames,
            transparency=config.transparency,
        )

    @property
    def images(self) -> ImageSchema:
        """Classes and shape."""
        return ImageSchema(self.class_names, self.image_shape)

    @property
    def preparation(self) -> Preparation:
        """How pixels become model input."""
        return Preparation(self.mean, self.std)

    @property
    def options(self) -> IntakeOptions:
        """How new files become pixels; percentages are no window for images of other people."""
        own = isinstance(parse_intensity(self.intensity), Percentiles)
        return IntakeOptions(
            image_shape=self.image_shape,
            resize=self.resize,
            intensity="" if own else self.intensity,
            frames=self.frames,
            transparency=self.transparency,
        )


def write_model_file(folder: Path, content: ModelFile) -> None:
    """Write a run's ``model.json``.

    Raises
    ------
    StorageError
        If the disk does not take it.
    """
    replace(folder / MODEL, (content.model_dump_json(by_alias=True, indent=1) + "\n").encode())


def read_model_file(folder: Path) -> ModelFile | None:
    """Read a run's ``model.json``; None where there is none, as in folders of older versions.

    Raises
    ------
    DataError
        If it is damaged.
    """
    return read(folder / MODEL, _parsed)


def _parsed(text: str) -> ModelFile:
    try:
        return ModelFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from error
