"""Which runs a comparison consists of, and running those that are missing, one after another."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedadb_app.assignments import flatten
from fedadb_app.config import Scalar
from fedadb_app.errors import ConfigError, DataError, FedADBError
from fedadb_app.flower_run import FlowerError, FlowerRun, Simulation
from fedadb_app.runs.checkpoint import MAY_DIFFER
from fedadb_app.runs.reader import read, read_configuration, read_summary

CELL_KEYS = ("strategy", "seed", "alpha", "output-dir", "run-name")
"""Keys that a comparison sets itself."""


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    strategy: str
    alpha: float
    seed: int

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.strategy}-alpha{self.alpha:g}-seed{self.seed}"


@dataclass(frozen=True)
class Grid:
    """A comparison: every method with every alpha and seed, all else equal.

    Attributes
    ----------
    strategies, alphas, seeds : tuple
        What varies.
    values : Mapping[str, Scalar]
        Overrides of the run configuration that all cells share.
    defaults : Mapping[str, Scalar]
        The app's defaults.
    simulation : Simulation
        The federation that all cells share.
    """

    strategies: tuple[str, ...]
    alphas: tuple[float, ...]
    seeds: tuple[int, ...]
    values: Mapping[str, Scalar]
    defaults: Mapping[str, Scalar]
    simulation: Simulation

    def cells(self) -> Iterator[Cell]:
        """Yield the cells, a seed at a time, so that an interrupted comparison is a fair one."""
        for seed in self.seeds:
            for alpha in self.alphas:
                for strategy in self.strategies:
                    yield Cell(strategy, alpha, seed)

    @property
    def effective(self) -> dict[str, Scalar]:
        """The run configuration of all cells, but for what a cell sets itself."""
        return {**self.defaults, **self.values}

    def shared(self) -> dict[str, Any]:
        """Return what must be equal for two calls to fill one folder, but for `MAY_DIFFER`."""
        shared = {key: value for key, value in self.effective.items() if key not in CELL_KEYS}
        return {"run-config": shared, "federation": asdict(self.simulation)}


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: its folder if it is complete, or the reason why it is not."""

    cell: Cell
    folder: Path | None
    reason: str = ""


Watch = Callable[[FlowerRun, Path, Cell], tuple[str, str]]
"""Waits for a run, showing its progress; returns its real status and details."""


def open_folder(folder: Path, grid: Grid) -> FileLock:
    """Make a comparison's folder, or go on in one with the same settings; hold its lock.

    Raises
    ------
    ConfigError
        If the folder belongs to a comparison with other settings, or another call works in it.
    DataError
        If what it says of its settings is damaged.
    """
    settings = folder / "comparison.json"
    lock = FileLock(folder / ".lock")
    try:
        (folder / "runs").mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout as error:
        raise ConfigError(f"another call of `fedadb` is working in {folder}") from error
    except OSError as error:
        raise ConfigError(f"--output {folder} cannot be written to: {error.strerror}") from error
    try:
        check_settings(folder, grid)
    except FedADBError:
        lock.release()
        raise
    if not settings.exists():
        temporary = settings.with_suffix(".tmp")
        temporary.write_text(json.dumps(grid.shared(), indent=1) + "\n")
        os.replace(temporary, settings)
    return lock


def check_settings(folder: Path, grid: Grid) -> None:
    """Check that a folder is free, or holds a comparison with the same settings.

    Raises
    ------
    ConfigError
        If the settings are others.
    DataError
        If ``comparison.json`` is damaged.
    """
    now = grid.shared()

    def parse(text: str) -> dict[str, dict[str, Any]]:
        content = json.loads(text)
        return {table: dict(content[table]) for table in now}

    settings = folder / "comparison.json"
    before = (read(settings, parse) if settings.exists() else None) or now
    differing = sorted(
        f"{table}.{key}"
        for table in now
        for key in (before[table].keys() | now[table].keys()) - MAY_DIFFER
        # what an older version did not know was as it is by default
        if before[table].get(key, grid.defaults.get(key)) != now[table].get(key)
    )
    if differing:
        raise ConfigError(
            f"{folder} holds a comparison with other settings ({', '.join(differing)}); "
            f"choose another --output"
        )


def is_complete(folder: Path) -> bool:
    """Whether a cell's run reached its end."""
    return read_summary(folder).get("status") == "completed"


def check_configuration(folder: Path, grid: Grid, cell: Cell) -> None:
    """Check that the run in a folder is the one that a cell asks for.

    Raises
    ------
    DataError
        If its ``config.toml`` has another value, or cannot be read.
    """
    asked = {**grid.effective, **asdict(cell)}
    # what an older version did not write was as it is by default
    found = {**grid.defaults, **flatten(read_configuration(folder))}
    for key in found:
        table = key.rpartition(".")[0]  # a run writes no other method's
        if table in ("", cell.strategy) and key not in MAY_DIFFER and found[key] != asked.get(key):
            has, wants = (
                json.dumps(value, ensure_ascii=False, default=str)
                for value in (found[key], asked.get(key))
            )
            raise DataError(
                f"{folder} holds another run: its config.toml says {key} = {has}, asked for is "
                f"{wants}; it does not count: move it away, and the right one is run"
            )


def run_missing(folder: Path, grid: Grid, app: Path, watch: Watch) -> Iterator[Outcome]:
    """Run the cells that are not complete, yielding each cell's outcome in order.

    A folder that an interrupted run left behind is kept under another name. A run counts only if
    Flower says ``finished:completed`` and its summary says ``completed``; one that was complete
    before, if it is the one that the cell asks for.
    """
    for cell in grid.cells():
        target = folder / "runs" / cell.name
        if is_complete(target):
            try:
                check_configuration(target, grid, cell)
            except DataError as error:
                yield Outcome(cell, None, str(error))
            else:
                yield Outcome(cell, target)
            continue
        set_aside(target)
        values = {
            **grid.values,
            "strategy": cell.strategy,
            "alpha": cell.alpha,
            "seed": cell.seed,
            "output-dir": str(target.parent),
            "run-name": cell.name,
        }
        try:
            status, details = watch(FlowerRun(app, values, grid.simulation), target, cell)
        except FlowerError as error:
            yield Outcome(cell, None, str(error))
            continue
        if status == "finished:completed" and is_complete(target):
            yield Outcome(cell, target)
        else:
            reason = read_summary(target).get("reason") or details
            set_aside(target)
            yield Outcome(cell, None, f"{status}: {reason}")


def set_aside(folder: Path) -> None:
    """Rename what an incomplete run left, so that nothing is lost and nothing is in the way."""
    if not folder.exists():
        return
    number = 1
    while (kept := folder.with_name(f"{folder.name}.incomplete{number}")).exists():
        number += 1
    folder.rename(kept)
