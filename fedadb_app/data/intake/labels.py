"""The label list, ``labels.csv``: ``file,label`` and, as one likes, ``patient,site,split``."""

import csv
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedadb_app.data.intake.find import FoundFile
from fedadb_app.data.intake.names import part_of, same_form, shown
from fedadb_app.data.intake.options import IntakeOptions
from fedadb_app.errors import DataError

LABEL_LIST = "labels.csv"
_COLUMNS = ("file", "label", "patient", "site", "split")


@dataclass(frozen=True)
class LabelRow:
    """One line of the list; what it does not say is None.

    Attributes
    ----------
    line : int
        Counted from 1, the header included.
    file : str
        As in the tree, with ``/`` between its parts.
    split : str or None
        ``train``, ``val`` or ``test``.
    """

    line: int
    file: str
    label: str | None
    patient: str | None
    site: str | None
    split: str | None

    def check_label(self, name: str, where: Path, options: IntakeOptions) -> None:
        """Refuse, with a `DataError`, a label that the federation does not know."""
        if options.class_names and name not in options.class_names:
            raise DataError(
                f'{shown(where)}, line {self.line}: the label "{shown(name)}" is none of the '
                f"federation's classes ({', '.join(options.class_names)})"
                f"{_nearest(name, options.class_names)}"
            )


def read_label_list(
    path: Path, files: Iterable[FoundFile], options: IntakeOptions
) -> dict[str, LabelRow]:
    """Read the list; file -> row.

    Raises
    ------
    DataError
        With the number of the line, for a line that cannot be understood, a file that is not
        there, and a file with two labels.
    """
    there = {same_form("/".join(file.relative)): "/".join(file.relative) for file in files}
    found: dict[str, LabelRow] = {}
    for line, cells in _lines(path):
        where = f"{shown(path)}, line {line}"
        named = same_form(cells["file"] or "").removeprefix("./")
        file = there.get(named) or there.get(named.replace("\\", "/"))
        if not named:
            raise DataError(f"{where}: no file is named")
        if file is None:
            raise DataError(
                f'{where}: there is no image "{shown(named)}" below {shown(path.parent)}'
                f"{_nearest(named, list(there))}"
            )
        split = cells["split"]
        part = part_of(split) if split else None
        if split and part is None:
            raise DataError(f'{where}: split="{shown(split)}" is none of train, val, test')
        row = LabelRow(line, file, cells["label"], cells["patient"], cells["site"], part)
        before = found.setdefault(file, row)
        if (before.label, before.patient, before.site, before.split) != (
            row.label,
            row.patient,
            row.site,
            row.split,
        ):
            raise DataError(
                f"{where}: {shown(file)} is listed in line {before.line} already, with "
                f"{_difference(before, row)}"
            )
    if not found:
        raise DataError(f"{shown(path)} lists no file")
    return found


def _difference(one: LabelRow, two: LabelRow) -> str:
    for name in ("label", "patient", "site", "split"):
        first, second = getattr(one, name), getattr(two, name)
        if first != second:
            return f'{name} "{shown(first or "")}" and not "{shown(second or "")}"'
    raise AssertionError


def _lines(path: Path) -> Iterable[tuple[int, dict[str, str | None]]]:
    """Return the lines below the header: number, column -> text without blanks around, or None."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{shown(path)} cannot be read as UTF-8 text: {error}") from error
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)  # spreadsheets write what the country writes
    reader = csv.reader(text.splitlines(), delimiter=separator, strict=True)
    try:
        header = [name.strip().casefold() for name in next(reader, [])]
        if "file" not in header or len(set(header)) < len(header) or set(header) - set(_COLUMNS):
            raise DataError(
                f"{shown(path)}, line 1: the columns are {', '.join(map(shown, header))}; "
                f"file and label, and as you like patient, site, split, are known"
            )
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{shown(path)}, line {reader.line_num}: {len(cells)} columns, but the header "
                    f"has {len(header)}; write a name with {separator!r} in double quotes"
                )
            row = dict(zip(header, cells, strict=True))
            yield (
                reader.line_num,
                {name: same_form(row.get(name, "").strip()) or None for name in _COLUMNS},
            )
    except csv.Error as error:
        raise DataError(f"{shown(path)}, line {reader.line_num}: {error}") from error


def _nearest(word: str, candidates: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, candidates[:10_000], n=1, cutoff=0.6)
    return f'; did you mean "{shown(close[0])}"?' if close else ""
