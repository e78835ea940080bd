"""Whose images they are, as far as that can be known, in numbers that name nobody."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedadb_app.data.intake.dicom import patient_of
from fedadb_app.data.intake.find import Tree
from fedadb_app.data.intake.layout import Entry
from fedadb_app.data.intake.names import patient_in, shown
from fedadb_app.data.intake.report import IntakeReport
from fedadb_app.errors import DataError

_WORDS = {
    "list": "stated by the label list for {} files",
    "header": "PatientID of {} DICOM files, hashed with this machine's salt",
    "name": "as patient-pattern finds them in the names of {} files",
    "folder": "the folders below the class folders, of {} files, are taken for patients",
}
"""Source of a patient -> what the report says of it."""


@dataclass(frozen=True)
class Patients:
    """The patients of all files.

    Attributes
    ----------
    ids : tuple[int, ...]
        Per file; equal for one patient. A file whose patient is unknown has its own.
    known : int
        Of how many files the patient is known.
    stated : bool
        By a list, a file's header or its name; folders only suggest it.
    source : str
        Where they are known from, in words.
    """

    ids: tuple[int, ...]
    known: int
    stated: bool
    source: str

    @property
    def any_known(self) -> bool:
        """Whether there is something to keep together."""
        return self.known > 0

    @property
    def all_known(self) -> bool:
        """Whether the number of patients means something."""
        return self.known == len(self.ids) > 0

    def check_parts(self, groups: Mapping[str, Sequence[int]], report: IntakeReport) -> None:
        """Tell a report of patients that are in the training part and in the test part."""
        both = set(groups["train"]) & set(groups["test"])
        if both and self.stated:
            report.errors.append(
                f"{len(both)} patients have images in the training and in the test part: an "
                f"accuracy on these says whom the model knows; put each into one part"
            )
        elif both:
            report.warnings.append(
                f"{len(both)} folders below the class folders are in the training and in the test "
                f"part: if each is a patient, put each into one part"
            )


def know_patients(
    tree: Tree,
    entries: Sequence[Entry],
    listed: bool,
    kinds: Mapping[tuple[str, ...], str],
    pattern: str,
    salt: Callable[[], bytes],
) -> Patients:
    """Find every file's patient: by the list, its DICOM header, its name, or the folder it is in.

    Parameters
    ----------
    tree : Tree
        Where the files are.
    entries : Sequence[Entry]
        What is known of them.
    listed : bool
        Whether they come with a label list.
    kinds : Mapping
        File -> format.
    pattern : str
        As `patient_in` understands it, or ``""``.
    salt : Callable[[], bytes]
        What a PatientID is hashed with.

    Raises
    ------
    DataError
        If the pattern is in the name of no file that it is asked about.
    """
    once = functools.cache(salt)
    numbers: dict[tuple[str, str], int] = {}
    ids: list[int] = []
    sources = dict.fromkeys(_WORDS, 0)
    unnamed: list[Entry] = []
    for entry in entries:
        relative = entry.file.relative
        patient, source = entry.patient, "list" if listed else "folder"
        if not (patient and listed):
            if kinds[relative] == "DICOM" and (header := patient_of(tree.path(relative), once())):
                patient, source = header, "header"
            elif pattern and (named := patient_in(entry.file.stem, pattern)):
                patient, source = named, "name"
            elif pattern:
                unnamed.append(entry)
        if patient:
            sources[source] += 1
            key = (source, patient)
        else:
            key = ("file", "/".join(relative))
        ids.append(numbers.setdefault(key, len(numbers)))
    said = [words.format(sources[name]) for name, words in _WORDS.items() if sources[name]]
    if unnamed:
        example = shown("/".join(unnamed[0].file.relative))
        if not sources["name"]:
            raise DataError(
                f'patient-pattern="{pattern}" is in the name of none of {len(unnamed)} files (as '
                f"{example}, without its suffix)"
            )
        said.append(f"patient-pattern is not in the names of {len(unnamed)} files (as {example})")
    known = sum(sources.values())
    if known < len(ids):
        said.append(
            f"not known of {len(ids) - known} files: images of one patient may be trained on and "
            f"evaluated on (a folder per patient, patient-pattern, or the column patient of "
            f"labels.csv, prevents it)"
        )
    stated = sources["folder"] == 0
    return Patients(tuple(ids), known, stated, "; ".join(said))
