"""A comparison's folder: whose it is, and which of its runs are the ones asked for."""

import json
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedadb_app.assignments import flatten
from fedadb_app.comparison.grid import Cell, Grid
from fedadb_app.config import RunConfig
from fedadb_app.data.clients import dataset_of
from fedadb_app.errors import ConfigError, DataError, FedADBError
from fedadb_app.runs.atomic import replace
from fedadb_app.runs.checkpoint import MAY_DIFFER
from fedadb_app.runs.reader import read_configuration
from fedadb_app.runs.summary import read_summary
from fedadb_app.runs.text_files import read
from fedadb_app.settings import validate


def open_folder(folder: Path, grid: Grid, patience: float = 0) -> FileLock:
    """Make a comparison's folder, or go on in one with the same settings; hold its lock.

    Parameters
    ----------
    folder : Path
        Of the comparison.
    grid : Grid
        Which runs it consists of.
    patience : float
        Seconds to wait for another call that holds the lock.

    Raises
    ------
    ConfigError
        If the folder belongs to a comparison with other settings, or another call works in it.
    DataError
        If what it says of its settings is damaged.
    """
    lock = FileLock(folder / ".lock")
    try:
        (folder / "runs").mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=patience)
    except Timeout as error:
        raise ConfigError(f"another call of `fedadb` is working in {folder}") from error
    except OSError as error:
        raise ConfigError(f"--output {folder} cannot be written to: {error.strerror}") from error
    try:
        before = check_settings(folder, grid)
    except FedADBError:
        lock.release()
        raise
    of_others = {k: v for k, v in before["methods"].items() if k not in grid.strategies}
    methods = of_others | {name: dict(table) for name, table in grid.own.items()}
    if not before["federation"] or methods != before["methods"]:
        content = {**(before if before["federation"] else grid.shared()), "methods": methods}
        replace(folder / f"{grid.kind}.json", (json.dumps(content, indent=1) + "\n").encode())
    return lock


def check_settings(folder: Path, grid: Grid) -> dict[str, dict[str, Any]]:
    """Check that a folder is free, or holds a comparison with the same settings; return these.

    What a method has for itself is not compared: a run that had other values is named and does
    not count (`check_configuration`).

    Returns
    -------
    dict[str, dict[str, Any]]
        The tables of its ``comparison.json``; all empty where there is none.

    Raises
    ------
    ConfigError
        If the settings are others.
    DataError
        If ``comparison.json`` is damaged.
    """
    now = grid.shared()
    settings = folder / f"{grid.kind}.json"

    def parse(text: str) -> dict[str, dict[str, Any]]:
        content = json.loads(text)
        found = {table: dict(content[table]) for table in now}
        return found | {"methods": dict(content.get("methods", {}))}  # older versions knew none

    before = read(settings, parse) if settings.exists() else None
    if before is None:
        return {table: {} for table in (*now, "methods")}
    differing = sorted(
        f"{table}.{key}"
        for table in now
        for key in (before[table].keys() | now[table].keys()) - MAY_DIFFER
        # what an older version did not know was as it is by default
        if before[table].get(key, grid.defaults.get(key)) != now[table].get(key)
    )
    if differing:
        raise ConfigError(
            f"{folder} holds a {grid.kind} with other settings ({', '.join(differing)}); "
            f"choose another --output"
        )
    return before


def claim(folder: Path) -> FileLock:
    """Hold a cell's folder, so that no other call runs it at the same time.

    Raises
    ------
    DataError
        If another call does.
    """
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise DataError("another call of `fedadb` is running it") from error
    return lock


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
    asked = {**grid.defaults, **grid.overrides(cell)}
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


def check_data(folder: Path, grid: Grid, cell: Cell) -> None:
    """Check that the run in a folder had the images that are on this machine now.

    Raises
    ------
    DataError
        If they have changed since.
    """
    recorded = read_summary(folder).get("data")
    if not recorded:  # by an older version of this app
        return
    values = {**grid.defaults, **grid.overrides(cell)}
    config = validate(RunConfig, {key: v for key, v in values.items() if "." not in key})
    try:
        digest = dataset_of(config).digest
    except DataError:  # not on this machine, which a run will say
        return
    if digest != recorded:
        raise DataError(
            f'{folder} was run on other images than dataset="{config.dataset}" holds now; it does '
            f"not count: put the images back, or choose another --output"
        )


def set_aside(folder: Path) -> None:
    """Rename what an incomplete run left, so that nothing is lost and nothing is in the way."""
    if not folder.exists():
        return
    number = 1
    while (kept := folder.with_name(f"{folder.name}.incomplete{number}")).exists():
        number += 1
    folder.rename(kept)
