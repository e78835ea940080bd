"""Two classes: the threshold of a run's model, chosen on the run's validation images."""

from fedadb_app.analysis.runs import SavedRun
from fedadb_app.errors import ConfigError, DataError
from fedadb_app.inference.predict import Kept
from fedadb_app.runs.predictions import Predictions
from fedadb_app.thresholds import OperatingPoint, operating_point


def operating_point_of(run: SavedRun, kept: Kept, sensitivity: float) -> OperatingPoint:
    """Return the highest threshold with a sensitivity for a run's second class.

    Raises
    ------
    ConfigError
        If the run has not two classes, or the sensitivity is none.
    DataError
        If the run has no validation images, or none of the second class.
    """
    classes = run.inputs.class_names
    if len(classes) != 2:
        raise ConfigError(
            f"--sensitivity {sensitivity:g}: a threshold divides two classes, and {run.folder} has "
            f"{len(classes)}"
        )
    written = Predictions.read(run.folder)
    found = None
    if written is not None:
        found = written.val_final if kept == "final" else written.val_chosen
    if written is None or written.val_labels is None or found is None:
        raise DataError(
            f"{run.folder}: a threshold is chosen on validation images, and the run has none; "
            f'keep some back from training, as in validation="0.1"'
        )
    return operating_point(written.val_labels, found[:, 1], sensitivity)
