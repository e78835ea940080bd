"""Which files a folder holds, without opening one: those to read, those left out, and why."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from fedadb_app.data.intake.names import HARMLESS, matches, shown
from fedadb_app.errors import DataError

IMAGE_SUFFIXES = frozenset(
    {".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".dib", ".gif", ".tif", ".tiff"}
    | {".webp", ".jp2", ".j2k", ".j2c", ".jpx", ".pgm", ".ppm", ".pbm", ".pnm"}
    | {".dcm", ".dicom", ".ima", ".nii", ".nii.gz"}
)
"""What is read; a file without a suffix is looked into."""

NO_SUFFIX = "without suffix"


@dataclass(frozen=True)
class FoundFile:
    """A file below the folder.

    Attributes
    ----------
    relative : tuple[str, ...]
        Its path below the folder, part by part.
    status : os.stat_result
        Of the file itself where it is reached by a link.
    """

    relative: tuple[str, ...]
    status: os.stat_result

    @property
    def suffix(self) -> str:
        """In small letters; `NO_SUFFIX` where there is none (DICOM is often named by numbers)."""
        return suffix_of(self.relative[-1])

    @property
    def stem(self) -> str:
        """Its name without the suffix."""
        name = self.relative[-1]
        return name if self.suffix == NO_SUFFIX else name[: -len(self.suffix)]


def suffix_of(name: str) -> str:
    """Return a file name's suffix as `FoundFile.suffix` does."""
    name = name.casefold()
    if name.endswith(".nii.gz"):
        return ".nii.gz"
    ending = os.path.splitext(name)[1]
    return NO_SUFFIX if not ending or ending[1:].isdecimal() else ending


@dataclass(frozen=True)
class LeftOut:
    """A file or folder that is not read.

    Attributes
    ----------
    relative : tuple[str, ...]
        Its path below the folder.
    kind : str
        What it is called in a report: a suffix, or why it is none of the images.
    allowed : bool
        Whether its name says that it may be left out.
    """

    relative: tuple[str, ...]
    kind: str
    allowed: bool


@dataclass(frozen=True)
class Tree:
    """What lies below a folder, in the order of the paths.

    Attributes
    ----------
    root : Path
        The folder.
    files : tuple[FoundFile, ...]
        What may be an image, by its name alone.
    folders : tuple[tuple[str, ...], ...]
        All that were looked into, the root (an empty path) aside.
    left_out : tuple[LeftOut, ...]
        The rest; of a folder that is left out, what it holds is not looked at.
    """

    root: Path
    files: tuple[FoundFile, ...]
    folders: tuple[tuple[str, ...], ...]
    left_out: tuple[LeftOut, ...]

    def path(self, relative: tuple[str, ...]) -> Path:
        """Return where a file or folder is."""
        return self.root.joinpath(*relative)


def find(root: Path, ignored: tuple[str, ...] = ()) -> Tree:
    """Look through a folder and all below it; links are followed.

    Raises
    ------
    DataError
        If a folder may not be listed, a link leads to nothing, or one folder is met twice.
    """
    files: list[FoundFile] = []
    folders: list[tuple[str, ...]] = []
    left_out: list[LeftOut] = []
    met: dict[tuple[int, int], Path] = {}
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        relative = waiting.pop()
        place = root.joinpath(*relative)
        _note_folder(place, met)
        for entry in _entries(place):
            path = (*relative, entry.name)
            if matches(entry.name, "/".join(path), HARMLESS):
                left_out.append(LeftOut(path, _harmless_kind(entry.name), True))
                continue
            if matches(entry.name, "/".join(path), ignored):
                left_out.append(LeftOut(path, "ignored", True))
                continue
            status = _status(entry)
            if stat.S_ISDIR(status.st_mode):
                waiting.append(path)
                folders.append(path)
            elif not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
                left_out.append(LeftOut(path, "pipe, socket or device", False))
            else:
                file = FoundFile(path, status)
                if file.suffix in IMAGE_SUFFIXES or file.suffix == NO_SUFFIX:
                    files.append(file)
                else:
                    left_out.append(LeftOut(path, file.suffix, False))
    files.sort(key=lambda file: file.relative)
    return Tree(
        root,
        tuple(files),
        tuple(sorted(folders)),
        tuple(sorted(left_out, key=lambda x: x.relative)),
    )


def _harmless_kind(name: str) -> str:
    return "hidden" if name.startswith(".") else "harmless by name"


def _entries(place: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(place) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"{shown(place)} cannot be read: {error.strerror}") from error


def _status(entry: os.DirEntry[str]) -> os.stat_result:
    try:
        return entry.stat()
    except OSError as error:
        why = "it is a link to nothing" if entry.is_symlink() else error.strerror
        raise DataError(f"{shown(entry.path)} cannot be read: {why}") from error


def _note_folder(place: Path, met: dict[tuple[int, int], Path]) -> None:
    try:
        status = os.stat(place)
    except OSError as error:
        raise DataError(f"{shown(place)} cannot be read: {error.strerror}") from error
    first = met.setdefault((status.st_dev, status.st_ino), place)
    if first != place:
        raise DataError(
            f"{shown(place)} and {shown(first)} are one folder, one being a link: its images "
            f"would be read twice; remove the link"
        )
