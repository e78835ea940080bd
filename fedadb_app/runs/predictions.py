"""What a run's last and chosen model say of each image: ``predictions.npz``, ``confusion.csv``."""

import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedadb_app.errors import DataError
from fedadb_app.metrics import Labels, confusion_matrix
from fedadb_app.runs.atomic import replace
from fedadb_app.runs.tables import csv_text

PREDICTIONS, CONFUSION = "predictions.npz", "confusion.csv"
CONFUSION_HEADER = ("round", "part", "true", "predicted", "count")

Probabilities = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Predictions:
    """Class probabilities of images, none of the images.

    Attributes
    ----------
    labels : numpy.ndarray
        True classes of the test part, int64 ``(N,)``, in its order.
    final : numpy.ndarray
        What the model of the last evaluated round says of it, float32 ``(N, C)``.
    final_round : int
        That round.
    chosen : numpy.ndarray or None
        The same of the model that ``select-by`` chose.
    chosen_round : int
        That round; 0 where none was chosen.
    val_labels, val_final, val_chosen : numpy.ndarray or None
        The same of the validation part, where there is one.
    groups : numpy.ndarray or None
        Whose each test image is, int64 ``(N,)``, where patients are known.
    """

    labels: Labels
    final: Probabilities
    final_round: int
    chosen: Probabilities | None = None
    chosen_round: int = 0
    val_labels: Labels | None = None
    val_final: Probabilities | None = None
    val_chosen: Probabilities | None = None
    groups: Labels | None = None

    def write(self, run_folder: Path, class_names: Sequence[str]) -> None:
        """Replace both files of a run.

        Raises
        ------
        StorageError
            If the disk does not take them.
        """
        known = {f.name: getattr(self, f.name) for f in fields(self)}
        arrays = {k: np.asarray(v) for k, v in known.items() if v is not None}
        if not self.chosen_round:
            del arrays["chosen_round"]
        packed = io.BytesIO()
        np.savez_compressed(packed, **arrays)  # type: ignore[arg-type]
        replace(run_folder / PREDICTIONS, packed.getvalue())
        confusion = csv_text([CONFUSION_HEADER, *self._confusion_rows(class_names)])
        replace(run_folder / CONFUSION, confusion.encode())

    @classmethod
    def read(cls, run_folder: Path) -> Self | None:
        """Read ``predictions.npz``; None where there is none.

        Raises
        ------
        DataError
            If it is damaged, or its arrays do not fit one another.
        """
        path = run_folder / PREDICTIONS
        if not path.is_file():
            return None
        try:
            with np.load(path, allow_pickle=False) as file:
                values: dict[str, Any] = {name: file[name] for name in file.files}
            for name in ("final_round", "chosen_round"):
                if name in values:
                    values[name] = int(values[name])
            found = cls(**values)
        except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(f"{path} cannot be read: {error}") from error
        if not found._fits():
            raise DataError(f"{path} cannot be read: its arrays do not fit one another")
        return found

    def _fits(self) -> bool:
        """Whether all arrays are of the same images and classes."""
        if self.final.ndim != 2:
            return False
        classes = self.final.shape[1]
        of_parts: list[tuple[Labels, tuple[Probabilities | None, ...]]]
        of_parts = [(self.labels, (self.final, self.chosen))]
        if self.val_labels is not None:
            of_parts.append((self.val_labels, (self.val_final, self.val_chosen)))
        return all(
            labels.dtype.kind == "i"
            and labels.ndim == 1
            and bool(((labels >= 0) & (labels < classes)).all())
            and all(p is None or p.shape == (len(labels), classes) for p in given)
            for labels, given in of_parts
        ) and (self.groups is None or self.groups.shape == self.labels.shape)

    def _confusion_rows(self, class_names: Sequence[str]) -> Iterator[Sequence[object]]:
        given = (
            (self.final_round, "test", self.labels, self.final),
            (self.final_round, "val", self.val_labels, self.val_final),
            (self.chosen_round, "test", self.labels, self.chosen),
            (self.chosen_round, "val", self.val_labels, self.val_chosen),
        )
        written: set[tuple[int, str]] = set()
        for number, part, labels, probabilities in given:
            # the last round may be the chosen one
            if labels is None or probabilities is None or (number, part) in written:
                continue
            written.add((number, part))
            predicted = probabilities.argmax(axis=1)
            confusion = confusion_matrix(labels, predicted, len(class_names))
            for (true, given_class), count in np.ndenumerate(confusion):
                yield number, part, class_names[true], class_names[given_class], count
