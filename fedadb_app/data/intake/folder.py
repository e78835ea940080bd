"""A folder's way in: find, decode, orient, scale, reduce, resize, check, divide, report."""

import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedadb_app.data.intake.arrays_on_disk import GrowingArray
from fedadb_app.data.intake.decode import decode, kind_of
from fedadb_app.data.intake.division import held_out_patients
from fedadb_app.data.intake.find import NO_SUFFIX, LeftOut, Tree, find
from fedadb_app.data.intake.frames import Decoded, ImageError
from fedadb_app.data.intake.intensity import Percentiles, Window
from fedadb_app.data.intake.labels import LABEL_LIST
from fedadb_app.data.intake.layout import Entry, lay_out
from fedadb_app.data.intake.names import shown
from fedadb_app.data.intake.options import IntakeOptions
from fedadb_app.data.intake.output import Output
from fedadb_app.data.intake.patients import Patients, know_patients
from fedadb_app.data.intake.prepare import PreparedImage, in_order, prepare
from fedadb_app.data.intake.refusal import SUFFIXES_READ, refuse_left_out, refuse_unusable
from fedadb_app.data.intake.report import REPORT, IntakeReport
from fedadb_app.errors import DataError

logger = logging.getLogger("flwr.fedadb")

Progress = Callable[[int, int], None]
"""Told how many files of how many are done."""

_SECONDS_BETWEEN_LINES = 10


@dataclass(frozen=True)
class _File:
    """A file that will be decoded: its format, label, part and patient."""

    entry: Entry
    kind: str
    label: int
    patient: int

    @property
    def part(self) -> str:
        return self.entry.part


def take_in_folder(
    root: Path,
    options: IntakeOptions,
    folder: Path,
    salt: Callable[[], bytes],
    progress: Progress | None = None,
) -> IntakeReport:
    """Turn a folder of images into plain arrays, and report on it.

    Writes ``{train,test}_{images,labels}.npy``, ``{train,test}_patients.npy`` where patients are
    known, ``train_domains.npy`` where sites are, and the report.

    Parameters
    ----------
    root : Path
        What is read: class folders, parts of class folders, or images with a label list.
    options : IntakeOptions
        The user's decisions. With `class_names` it is a node's, which need not have a test part.
    folder : Path
        Where the arrays go.
    salt : Callable[[], bytes]
        What patients' numbers are hashed with, where there are some.
    progress : callable, optional
        Told how far it is.

    Raises
    ------
    DataError
        If the folder cannot be understood; a `IntakeError`, with the report, if files cannot
        be used.
    """
    tree = find(root, options.ignored)
    layout = lay_out(tree, options)
    report = IntakeReport(shown(root), class_names=list(layout.class_names))
    report.found = len(tree.files) + sum(not x.allowed for x in tree.left_out)
    report.layout += layout.notes
    kinds, no_images = _survey(tree, layout.entries)
    entries = [e for e in layout.entries if e.file.relative in kinds]
    left_out = (*tree.left_out, *layout.left_out, *no_images)
    if layout.listed:
        left_out = tuple(x for x in left_out if x.relative != (LABEL_LIST,))
    report.leave_out(left_out, 1 + bool(layout.notes and not layout.listed))
    refuse_left_out(left_out, report, root)
    patients = know_patients(tree, entries, layout.listed, kinds, options.patient_pattern, salt)
    report.patients = patients.source
    files = _files(entries, layout.class_names, kinds, patients, options, root)
    window = _window(tree, files, options)
    with ExitStack() as stack:
        parts = {f: stack.enter_context(GrowingArray(folder / f"{f}_images.npy")) for f in PARTS}
        output = Output(parts, report, options)
        _write(tree, files, options, window, output, progress)
    refuse_unusable(output.problems, report, root)
    output.finish(folder, patients, window)
    (folder / REPORT).write_text(json.dumps(report.to_json()))
    return report


PARTS = ("train", "test")


def _survey(
    tree: Tree, entries: Sequence[Entry]
) -> tuple[dict[tuple[str, ...], str], tuple[LeftOut, ...]]:
    """Return file -> format (``""``: none), and those without a suffix that are no images."""
    kinds: dict[tuple[str, ...], str] = {}
    left_out: list[LeftOut] = []
    for entry in entries:
        file = entry.file
        path = tree.path(file.relative)
        try:
            kind = kind_of(path, file.suffix)
        except OSError as error:
            raise DataError(f"{shown(path)} cannot be read: {error.strerror}") from error
        if kind is None and file.suffix == NO_SUFFIX:
            left_out.append(LeftOut(file.relative, NO_SUFFIX, False))
        else:
            kinds[file.relative] = kind or ""
    return kinds, tuple(left_out)


def _files(
    entries: Sequence[Entry],
    class_names: Sequence[str],
    kinds: dict[tuple[str, ...], str],
    patients: Patients,
    options: IntakeOptions,
    root: Path,
) -> list[_File]:
    """Give every file its label and part, those of the training part first."""
    order = {name: label for label, name in enumerate(class_names)}
    node = options.class_names is not None
    files = [
        _File(entry, kinds[entry.file.relative], order[entry.class_name], patient)
        for entry, patient in zip(entries, patients.ids, strict=True)
    ]
    if not files:
        raise DataError(f"{shown(root)} holds no image ({SUFFIXES_READ})")
    if not node and not any(f.part == "test" for f in files):
        if any(f.part for f in files):
            raise DataError(f"{shown(root)} gives no test image: there are not both train and test")
        files = _with_a_fifth_held_out(files, class_names, patients, root)
    files = [f if f.part else replace(f, entry=replace(f.entry, part="train")) for f in files]
    files.sort(key=lambda f: f.part == "test")
    if files[0].part == "test":
        raise DataError(f"{shown(root)} holds no image to train on")
    return files


def _with_a_fifth_held_out(
    files: list[_File], class_names: Sequence[str], patients: Patients, root: Path
) -> list[_File]:
    labels = np.array([f.label for f in files], np.int64)
    for label, name in enumerate(class_names):
        if (labels == label).sum() < 2:
            raise DataError(
                f"{shown(root)}: class folder {shown(name)} needs two images: one is held out"
            )
    ids = np.array(patients.ids, np.int64) if patients.any_known else None
    marked = held_out_patients(labels, ids)
    if not marked.any():
        raise DataError(
            f"{shown(root)} gives no test image: no class can spare a patient; make the parts "
            f"train and test yourself"
        )
    return [
        replace(f, entry=replace(f.entry, part="test" if held else "train"))
        for f, held in zip(files, marked, strict=True)
    ]


def _decoded(tree: Tree, file: _File, options: IntakeOptions) -> Decoded:
    found = file.entry.file
    return decode(tree.path(found.relative), file.kind, found.suffix, options)


def _window(tree: Tree, files: Sequence[_File], options: IntakeOptions) -> Window | None:
    """Return what makes 8 bits of more; percentiles are those of the training part."""
    scale = options.scale
    if not isinstance(scale, Percentiles):
        return scale
    training = [f for f in files if f.part == "train"]
    results = in_order(lambda file: _decoded(tree, file, options), training)
    decoded = (result for _, result in results if isinstance(result, Decoded))
    return scale.window(f.pixels for d in decoded for f in d.frames if f.deep)


def _write(
    tree: Tree,
    files: Sequence[_File],
    options: IntakeOptions,
    window: Window | None,
    output: Output,
    progress: Progress | None,
) -> None:
    def work(file: _File) -> tuple[Decoded, list[PreparedImage]]:
        decoded = _decoded(tree, file, options)
        return decoded, [prepare(frame, options, window) for frame in decoded.frames]

    said = time.monotonic()
    for done, (file, result) in enumerate(in_order(work, files), 1):
        name = "/".join(file.entry.file.relative)
        if isinstance(result, ImageError):
            output.cannot_use(tree.path(file.entry.file.relative), name, result)
        else:
            output.add(tree.path(file.entry.file.relative), file, *result)
        if progress is not None:
            progress(done, len(files))
        elif time.monotonic() - said > _SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            logger.info("prepared %d of %d files", done, len(files))
