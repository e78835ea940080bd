"""A text file of a run or a comparison: parsed, or refused in one sentence that names it."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fedadb_app.errors import DataError

T = TypeVar("T")


def read(path: Path, parse: Callable[[str], T]) -> T | None:
    """Return what `parse` makes of a text file, None if it is not there.

    Raises
    ------
    DataError
        If it cannot be read or is damaged.
    """
    try:
        return parse(path.read_text())
    except FileNotFoundError:
        return None
    except KeyError as error:
        raise DataError(f"{path} cannot be read: it lacks {error}") from error
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def read_or_note(path: Path, parse: Callable[[str], T], faults: dict[str, str]) -> T | None:
    """Return as `read` does; of a damaged file nothing, and a sentence goes under its name."""
    try:
        return read(path, parse)
    except DataError as error:
        faults[path.name] = str(error)
        return None
