"""`fedadb predict`: a run's model on new images, prepared as those that it was trained on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from fedadb_app.analysis.runs import SavedRun
from fedadb_app.data.batches import LocalData
from fedadb_app.data.intake.intensity import Percentiles
from fedadb_app.data.intake.names import shown
from fedadb_app.data.intake.new_images import NewFile, take_in_new_images
from fedadb_app.data.intake.options import IntakeOptions
from fedadb_app.data.intake.report import IntakeReport
from fedadb_app.errors import ConfigError
from fedadb_app.evaluation import evaluate
from fedadb_app.models.classifier import ImageClassifier, ModelSpec, model_facts
from fedadb_app.runs.atomic import replace
from fedadb_app.runs.model_file import ModelFile
from fedadb_app.runs.tables import csv_text

Kept = Literal["final", "chosen"]
"""Which of a run's models: of its last round, or of the round that validation chose."""

FILES: dict[Kept, str] = {"final": "model.safetensors", "chosen": "best.safetensors"}


@dataclass(frozen=True)
class Predictions:
    """What a model says of new images.

    Attributes
    ----------
    class_names : Sequence[str]
        Index = position of the probability.
    files : Sequence[NewFile]
        Where the images are from, and files that gave none.
    probabilities : numpy.ndarray
        float32, ``(N, C)``.
    report : IntakeReport
        How the images came in.
    """

    class_names: Sequence[str]
    files: Sequence[NewFile]
    probabilities: npt.NDArray[np.float32]
    report: IntakeReport

    def labels(self, threshold: float | None = None) -> npt.NDArray[np.int64]:
        """Return the chosen classes, int64 ``(N,)``.

        The most probable one; of two classes, with a threshold, the second where its probability
        is at least that.
        """
        if threshold is None:
            most: npt.NDArray[np.int64] = self.probabilities.argmax(axis=1)
            return most
        return (self.probabilities[:, 1] >= threshold).astype(np.int64)

    def write(self, path: Path, threshold: float | None = None) -> None:
        """Write a row for each image, and one for each file that gave none.

        Columns: ``file``, ``image`` (its number in the file, from 0), ``class``, a column
        ``p:<class>`` for each class, ``problem``.

        Raises
        ------
        StorageError
            If it cannot be written.
        """
        columns = [f"p:{name}" for name in self.class_names]
        header = ["file", "image", "class", *columns, "problem"]
        replace(path, csv_text([header, *self._rows(self.labels(threshold))]).encode())

    def _rows(self, labels: npt.NDArray[np.int64]) -> Iterator[list[str]]:
        position = 0
        for file in self.files:
            if file.problem:
                empty = [""] * len(self.class_names)
                yield [shown(file.name), "", "", *empty, file.problem]
            for number in range(file.images):
                cells = [f"{p:.9g}" for p in self.probabilities[position]]  # exact, of float32
                yield [
                    *(shown(file.name), str(number), self.class_names[labels[position]]),
                    *(*cells, ""),
                ]
                position += 1


def refuse_batch_local(run: SavedRun, what: str) -> None:
    """Refuse, with a `ConfigError`, a model whose output depends on the batch around an image."""
    spec = ModelSpec.of(run.config, run.inputs.images)
    if spec.norm == "batch-local" and model_facts(spec, run.heads).batch_statistics:
        raise ConfigError(
            f'{run.folder}: {what} is not possible with norm="batch-local": what such a model says '
            f'of an image depends on the images beside it; train with norm="batch" or "group"'
        )


def model_of(run: SavedRun, kept: Kept) -> ImageClassifier:
    """Return one of a run's models.

    Raises
    ------
    ConfigError
        If the run has chosen none.
    DataError
        If the file is not there, or damaged.
    """
    if kept == "chosen" and not (run.folder / FILES[kept]).exists():
        raise ConfigError(
            f"--model chosen: {run.folder} has no {FILES[kept]}: the run chose no round on "
            f"validation images; use --model final"
        )
    return run.whole_model(FILES[kept])


def predict(
    run: SavedRun, kept: Kept, path: Path, options: IntakeOptions, array: str = ""
) -> Predictions:
    """Return what one of a run's models says of new images.

    Parameters
    ----------
    run : SavedRun
        Its folder is all that is needed.
    kept : {"final", "chosen"}
        Which model.
    path, options, array
        As of `take_in_new_images`.

    Raises
    ------
    ConfigError
        If the model cannot be used image by image, or there is no chosen one.
    DataError
        If the model or the images cannot be read.
    """
    refuse_batch_local(run, "predicting")
    if isinstance(options.scale, Percentiles):
        raise ConfigError(
            f"--intensity {options.intensity}: give two values; with percentages of new images, "
            f"what a model sees of one would depend on the others"
        )
    model = model_of(run, kept)
    with TemporaryDirectory() as folder:
        images = take_in_new_images(path, options, Path(folder), array)
        samples = as_samples(run.inputs, images.pixels, run.device)
        found = evaluate(model, samples, run.config).probabilities
    return Predictions(run.inputs.class_names, images.files, found, images.report)


def as_samples(inputs: ModelFile, pixels: npt.NDArray[np.uint8], device: torch.device) -> LocalData:
    """Return images as what a run evaluates, with labels that nothing looks at."""
    rows, none = np.arange(len(pixels)), np.zeros(len(pixels), np.int64)
    classes, preparation = len(inputs.class_names), inputs.preparation
    return LocalData.from_arrays(pixels, none, rows, classes, device, preparation=preparation)
