"""A run as TensorBoard event files, which its folder keeps."""

from fedadb_app.errors import ConfigError
from fedadb_app.runs.live_view import EventFiles
from fedadb_app.trackers.handed import Handed, library


def log_to_tensorboard(handed: Handed) -> str:
    """Write event files into the run's folder, with its configuration and its numbers.

    Raises
    ------
    ConfigError
        If TensorBoard is not installed, or the run has event files already.
    """
    library("tensorboard")
    target = handed.folder / "tensorboard"
    if target.exists() and any(target.iterdir()):
        raise ConfigError(
            f"{target} has event files already, of the run itself (tensorboard=true) or of an "
            f"earlier call: tensorboard --logdir {target}"
        )
    events = EventFiles(handed.folder)
    events.follow(first_round=1)
    events.describe(handed.parameters, {f"summary/{k}": v for k, v in handed.numbers.items()})
    events.close()
    return str(target)
