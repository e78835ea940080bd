"""A run's tables as TensorBoard event files, for those who watch it round by round."""

import re
from collections.abc import Iterator
from pathlib import Path

from fedadb_app.errors import ConfigError
from fedadb_app.runs.record import TABLES
from fedadb_app.runs.tables import Table, read_table
from fedadb_app.runs.text_files import read


class EventFiles:
    """``<run folder>/tensorboard/``, one step per round: what the tables hold, cell by cell.

    Tags are ``rounds/<column>``, ``class_accuracy/<label>-<name>``, ``diagnostics/<name>`` and, of
    whole parts, ``metrics/<part>-<metric>``. An empty cell has no event.

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
        for server_round, tag, value in _cells(self._folder):
            if server_round >= first_round:
                # Single precision: TensorBoard's fast loader, its default, shows no doubles.
                self._writer.add_scalar(tag, value, server_round)
        self._writer.flush()

    def close(self) -> None:
        """Give the file back; nothing is written any more."""
        if self._writer is not None:
            self._writer.close()


def _cells(run_folder: Path) -> Iterator[tuple[int, str, float]]:
    """Yield round, tag and value of each cell that is not empty."""
    rounds, classes, diagnostics, metrics = (_table(run_folder / name) for name in TABLES)
    for row in rounds.rows:
        for column, cell in zip(rounds.header[1:], row[1:], strict=True):
            if cell:
                yield int(row[0]), f"rounds/{column}", float(cell)
    for row in classes.rows:
        for label, (name, cell) in enumerate(zip(classes.header[1:], row[1:], strict=True)):
            if cell:  # the label keeps apart two names that differ in unsafe characters only
                yield int(row[0]), f"class_accuracy/{label}-{_safe(name)}", float(cell)
    for server_round, name, cell in diagnostics.rows:
        yield int(server_round), f"diagnostics/{_safe(name)}", float(cell)
    for server_round, part, metric, class_name, cell in metrics.rows:
        if cell and not class_name:
            yield int(server_round), f"metrics/{part}-{metric}", float(cell)


def _table(path: Path) -> Table:
    """Return a table; those of classes and diagnostics come with their first row."""
    return read(path, read_table) or Table([], [])


def _safe(name: str) -> str:
    """Leave only what TensorBoard takes for no group and an address needs no escape for."""
    return re.sub(r"[^\w.-]", "_", name)
