"""Names of files and folders: as shown to a person, and compared with one another."""

import fnmatch
import os
import re
import unicodedata

HARMLESS = (
    ".*",
    "Thumbs.db",
    "ehthumbs.db",
    "desktop.ini",
    "@eaDir",
    "#recycle",
    "$RECYCLE.BIN",
    "System Volume Information",
    "lost+found",
    "__MACOSX",
    "DICOMDIR",
    "README*",
    "LICENSE*",
    "*.md",
    "*.txt",
)
"""Names that are left out, counted, without being asked: no images of a class."""

_PART = re.compile(
    r"(?P<kind>train(?:ing)?|val(?:id(?:ation)?)?|dev(?:elopment)?|test(?:ing)?)"
    r"(?:[ _-]?(?:set|data|images?|part|split))?"
)


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path as text that any file and terminal takes, in one line."""
    text = os.fsencode(os.fspath(path)).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def same_form(name: str) -> str:
    """Return a name with composed characters: an umlaut typed on macOS is one typed elsewhere."""
    return unicodedata.normalize("NFC", name)


def matches(name: str, relative: str, patterns: tuple[str, ...]) -> bool:
    """Say whether a pattern covers a name (or, where it has a ``/``, a path), case aside."""
    return any(
        fnmatch.fnmatchcase((relative if "/" in p else name).casefold(), p.casefold())
        for p in patterns
    )


PATIENT_PATTERN = r"^(([^{}/]*[^{}/*?])?\{patient\}([^{}/*?][^{}/]*)?)?$"
"""What `patient_in` understands: beside ``{patient}`` stands a character, no wildcard."""


def patient_in(stem: str, pattern: str) -> str | None:
    """Return what stands for ``{patient}`` in a file's name without its suffix; None: no match.

    ``*`` stands for any characters and ``?`` for one; they and ``{patient}`` are as short as they
    can be: ``*_{patient}_*`` finds ``p7`` in ``scan_p7_2_left``.
    """
    words = {"*": ".*?", "?": "."}
    before, after = (
        "".join(words.get(c, re.escape(c)) for c in same_form(part))
        for part in pattern.split("{patient}")
    )
    match = re.fullmatch(f"{before}(.+?){after}", same_form(stem), re.DOTALL)
    return match[1] if match else None


def part_of(folder: str) -> str | None:
    """Return ``train``, ``val`` or ``test`` where a folder is called so, in any usual spelling."""
    match = _PART.fullmatch(folder.casefold())
    if match is None:
        return None
    kind = match["kind"]
    return "train" if kind.startswith("tr") else "test" if kind.startswith("te") else "val"
