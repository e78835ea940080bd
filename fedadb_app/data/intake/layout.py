"""What each file of a folder is: its part, its class, its patient, from where it lies."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedadb_app.data.intake.find import FoundFile, LeftOut, Tree
from fedadb_app.data.intake.labels import LABEL_LIST, read_label_list
from fedadb_app.data.intake.names import part_of, same_form, shown
from fedadb_app.data.intake.options import IntakeOptions
from fedadb_app.errors import DataError


@dataclass(frozen=True)
class Entry:
    """One file with what is known of it.

    Attributes
    ----------
    file : FoundFile
        Where it is.
    part : str
        ``train`` (validation parts included), ``test`` or ``""``: to be divided.
    class_name : str
        Its class.
    patient, site : str or None
        Whose it is, and from where.
    """

    file: FoundFile
    part: str
    class_name: str
    patient: str | None = None
    site: str | None = None


@dataclass(frozen=True)
class Layout:
    """All files of a folder.

    Attributes
    ----------
    entries : tuple[Entry, ...]
        In the order in which they are written: parts as their folders are called, classes, paths.
    class_names : tuple[str, ...]
        Index = label.
    left_out : tuple[LeftOut, ...]
        What lies where no class is.
    listed : bool
        Whether the patients are stated by a list, rather than guessed from sub-folders.
    notes : tuple[str, ...]
        How the folder was understood.
    """

    entries: tuple[Entry, ...]
    class_names: tuple[str, ...]
    left_out: tuple[LeftOut, ...] = ()
    listed: bool = False
    notes: tuple[str, ...] = field(default=())


def lay_out(tree: Tree, options: IntakeOptions) -> Layout:
    """Say what each file is, by ``labels.csv`` where there is one, else by the folders.

    Raises
    ------
    DataError
        If the folders cannot be understood, or hold what the federation does not know.
    """
    if any(x.relative == (LABEL_LIST,) for x in tree.left_out):
        return _from_list(tree, options)
    parts = _parts(tree)
    rest = [x for x in tree.files if not _inside(x.relative, parts)]
    classes = _class_folders(tree, parts, options)
    entries: list[Entry] = []
    beside: list[LeftOut] = [LeftOut(x.relative, "beside the class folders", False) for x in rest]
    for file in tree.files:
        if not _inside(file.relative, parts):
            continue
        below = file.relative[1:] if parts else file.relative
        if len(below) < 2:
            beside.append(LeftOut(file.relative, "beside the class folders", False))
            continue
        part = parts[file.relative[0]] if parts else ""
        patient = same_form(below[1]) if len(below) > 2 else None
        entries.append(
            Entry(file, "train" if part == "val" else part, same_form(below[0]), patient)
        )
    names = options.class_names or tuple(sorted(classes))
    order = {name: label for label, name in enumerate(names)}
    tops = list(parts)
    entries.sort(
        key=lambda e: (
            tops.index(e.file.relative[0]) if parts else 0,
            order[e.class_name],
            e.file.relative,
        )
    )
    for top in parts:
        images = [x.relative for x in tree.files] + [
            x.relative
            for x in tree.left_out
            if not x.allowed  # refused in another sentence
        ]
        if not any(relative[0] == top for relative in images):
            raise DataError(f"{shown(tree.root / top)} holds no image")
    if not options.class_names:
        _check_complete(tree, parts, names, entries)
    notes = [f"folder {shown(top)} is the {_PART_WORDS[part]}" for top, part in parts.items()]
    return Layout(tuple(entries), names, tuple(beside), notes=tuple(notes))


_PART_WORDS = {"train": "training part", "val": "validation part, trained on", "test": "test part"}


def _inside(relative: tuple[str, ...], parts: dict[str, str]) -> bool:
    return not parts or relative[0] in parts


def _parts(tree: Tree) -> dict[str, str]:
    """Return top folder -> ``train``, ``val`` or ``test``; empty where the folders are classes."""
    tops = sorted(folder[0] for folder in tree.folders if len(folder) == 1)
    parts = {top: part for top in tops if (part := part_of(top))}
    if "train" not in parts.values() and "test" not in parts.values():
        return {}
    holding = {f.relative[0] for f in tree.files if len(f.relative) == 2}
    below = {folder[0] for folder in tree.folders if len(folder) == 2}
    if all(top in holding and top not in below for top in parts) and len(tops) > len(parts):
        return {}  # a train among other vehicles: it holds images as they do
    where = shown(tree.root)
    others = [top for top in tops if top not in parts]
    if others:
        raise DataError(
            f"{where} has the folders {', '.join(map(shown, parts))}, which are parts by their "
            f"names, and {', '.join(map(shown, others))}, which are not: put all images into "
            f"parts, or all into class folders"
        )
    for part in ("train", "val", "test"):
        same = [top for top in parts if parts[top] == part]
        if len(same) > 1:
            raise DataError(f"{where} has two folders for the {part} part: {', '.join(same)}")
    if "train" not in parts.values():
        raise DataError(f"{where} has a folder {next(iter(parts))} but no folder train")
    return dict(sorted(parts.items(), key=lambda x: ("train", "val", "test").index(x[1])))


def _class_folders(
    tree: Tree, parts: dict[str, str], options: IntakeOptions
) -> dict[str, list[tuple[str, ...]]]:
    """Return class name -> its folders; a name in two forms is one."""
    depth = 2 if parts else 1
    found: dict[str, list[tuple[str, ...]]] = {}
    for folder in tree.folders:
        if len(folder) == depth:
            found.setdefault(same_form(folder[-1]), []).append(folder)
    if not found:
        raise DataError(f"{shown(tree.root)} holds no class folder")
    for top in parts or [""]:
        if parts and not any(f[0] == top for folders in found.values() for f in folders):
            raise DataError(f"{shown(tree.root / top)} holds no class folder")
    if len(found) == 1 and not options.class_names and not parts:
        (only,) = found.values()
        inner = [f[-1] for f in tree.folders if len(f) == 2]
        if inner and all(part_of(name) for name in inner):
            raise DataError(
                f"{shown(tree.root)} has no class folders but one folder that holds parts: give "
                f"its path, {shown(tree.path(only[0]))}"
            )
    for name, folders in found.items():
        _check_name(name, tree, folders[0], options)
    return found


def _check_name(name: str, tree: Tree, folder: tuple[str, ...], options: IntakeOptions) -> None:
    where = shown(tree.path(folder))
    if any("\ud800" <= c <= "\udfff" for c in name) or not name.isprintable():
        raise DataError(
            f"{where}: the name of this class folder is not UTF-8 text; rename it"
            if name.isprintable() or any("\ud800" <= c <= "\udfff" for c in name)
            else f"{where}: the name of this class folder has unprintable characters; rename it"
        )
    if options.class_names and name not in options.class_names:
        if part_of(name):
            advice = "if it is a part, the others must be, too: train and test"
        else:
            advice = "rename or remove it"
        listed = in_one_line(options.class_names)
        if "," in name:
            advice += "; a name with a comma needs semicolons between the names of classes"
        raise DataError(f"{where} is none of the federation's classes ({listed}); {advice}")


def in_one_line(class_names: Sequence[str]) -> str:
    """Return class names with commas between, or semicolons where a name has a comma."""
    separator = "; " if any("," in name for name in class_names) else ", "
    return separator.join(class_names)


def _check_complete(
    tree: Tree, parts: dict[str, str], names: tuple[str, ...], entries: list[Entry]
) -> None:
    """Refuse a data set that lacks images of a class, or has a class in its test part alone."""
    trained = {e.class_name for e in entries if e.part != "test"}
    tops = [top for top, part in parts.items() if part == "train"]
    within = tree.root / tops[0] if tops else tree.root
    folders = {same_form(f[-1]): f for f in tree.folders if len(f) == (2 if parts else 1)}
    for name in names:
        if name in trained:
            continue
        in_training = not parts or (tree.root / tops[0] / folders[name][-1]).is_dir()
        left = [x for x in tree.left_out if x.relative[: len(folders[name])] == folders[name]]
        if any(not x.allowed for x in left):
            continue  # refused for these, with a better sentence
        if in_training:
            raise DataError(f"class folder {shown(within / folders[name][-1])} holds no image")
        raise DataError(f"{shown(tree.path(folders[name]))} is a class that {shown(within)} lacks")


def _from_list(tree: Tree, options: IntakeOptions) -> Layout:
    rows = read_label_list(tree.root / LABEL_LIST, tree.files, options)
    entries: list[Entry] = []
    for file in tree.files:
        row = rows.pop("/".join(file.relative), None)
        if row is None:
            continue
        top = part_of(file.relative[0]) if len(file.relative) > 1 else None
        below = file.relative[1:] if top else file.relative
        name = row.label or (same_form(below[0]) if len(below) > 1 else "")
        if not name:
            raise DataError(
                f"{shown(tree.root / LABEL_LIST)}, line {row.line}: {shown(row.file)} has no "
                f"label, neither here nor by a class folder"
            )
        row.check_label(name, tree.root / LABEL_LIST, options)
        part = row.split or top or ""
        entries.append(Entry(file, "train" if part == "val" else part, name, row.patient, row.site))
    names = options.class_names or tuple(sorted({e.class_name for e in entries}))
    order = {name: label for label, name in enumerate(names)}
    entries.sort(key=lambda e: (e.part == "test", order[e.class_name], e.file.relative))
    taken = {e.file.relative for e in entries}
    beside = [
        LeftOut(f.relative, f"not in {LABEL_LIST}", False)
        for f in tree.files
        if f.relative not in taken
    ]
    return Layout(
        tuple(entries), names, tuple(beside), True, (f"labels are those of {LABEL_LIST}",)
    )
