"""A user's own images as a source: a folder or an ``.npz`` file that goes through the intake."""

import os
from functools import partial
from pathlib import Path

from fedadb_app.data.intake.archive_intake import take_in_archive
from fedadb_app.data.intake.dicom import node_salt
from fedadb_app.data.intake.digest import file_stamp
from fedadb_app.data.intake.find import find
from fedadb_app.data.intake.folder import Progress, take_in_folder
from fedadb_app.data.intake.labels import LABEL_LIST
from fedadb_app.data.intake.names import shown
from fedadb_app.data.intake.options import IntakeOptions
from fedadb_app.data.prepared import FORMAT, Source, cache_folder, label_of
from fedadb_app.errors import DataError


def own_source(
    path: Path, options: IntakeOptions, label: str = "", progress: Progress | None = None
) -> Source:
    """Return a user's images as they lie on this machine.

    Parameters
    ----------
    path : Path
        A folder of class folders or with a label list, or an ``.npz`` file in MedMNIST layout.
    options : IntakeOptions
        The user's decisions; with `class_names` they are a node's, which need no test part.
    label : str
        Put before the name of the prepared folder.
    progress : callable, optional
        Told how many files of how many are done.

    Raises
    ------
    DataError
        If there is nothing at the path, or it may not be looked at.
    """
    if os.path.isdir(path):  # unlike Path's, no error where a folder above is closed to us
        tree = find(path, options.ignored)
        listed = [("/".join(f.relative), f.status) for f in tree.files]
        if any(x.relative == (LABEL_LIST,) for x in tree.left_out):
            listed.append((LABEL_LIST, (path / LABEL_LIST).stat()))
        others = [("/".join(x.relative), x.kind, x.allowed) for x in tree.left_out]
        stamp = file_stamp(listed, path, (FORMAT, options, tree.folders, others))

        def write(folder: Path) -> list[str]:
            salt = partial(node_salt, cache_folder())
            return take_in_folder(path, options, folder, salt, progress).class_names

    elif os.path.isfile(path):
        stamp = file_stamp([(path.name, path.stat())], path.parent, (FORMAT, options))

        def write(folder: Path) -> list[str]:
            return take_in_archive(path, options, folder).class_names

    else:
        raise DataError(f"{shown(path)}: there is no such file or folder, or no right to see it")
    return Source(f"{label}{label_of(path)}", stamp, write, origin=f"{path} {options!r}")
