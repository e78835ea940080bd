"""A run's tables as TensorBoard event files, for those who watch it round by round."""

from collections.abc import Mapping
from pathlib import Path

from fedadb_app.config import Scalar
from fedadb_app.errors import ConfigError
from fedadb_app.runs.series import cells


class EventFiles:
    """``<run folder>/tensorboard/``, one step per round: what the tables hold, cell by cell.

    Tags are those of `fedadb_app.runs.series.cells`. An empty cell has no event.

    Parameters
    ----------
    run_folder : Path
        Where the tables are; it need not exist before the first `follow`.

    Raises
    ------
    ConfigError
        If TensorBoard is not installed.
    """

    def __init__(self, run_folder: Path) -> None:
        try:  # here, as it is an extra, and nobody else should wait for its import
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                f"tensorboard=true needs TensorBoard in the environment of the server ({error}): "
                f'pip install "fedadb-app[tensorboard]" there, or set tensorboard=false'
            ) from error
        self._open = SummaryWriter
        self._folder = run_folder
        self._writer: SummaryWriter | None = None

    def follow(self, first_round: int) -> None:
        """Write and flush the rounds in the tables, from `first_round` on."""
        if self._writer is None:
            self._writer = self._open(str(self._folder / "tensorboard"))
        for server_round, tag, value in cells(self._folder):
            if server_round >= first_round:
                # Single precision: TensorBoard's fast loader, its default, shows no doubles.
                self._writer.add_scalar(tag, value, server_round)
        self._writer.flush()

    def describe(self, parameters: Mapping[str, Scalar], numbers: Mapping[str, float]) -> None:
        """Write what the run was given and ended with, for the page of hyperparameters.

        After `follow`, which opens the file.
        """
        assert self._writer is not None
        self._writer.add_hparams(dict(parameters), dict(numbers), run_name=".")

    def close(self) -> None:
        """Give the file back; nothing is written any more."""
        if self._writer is not None:
            self._writer.close()
