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


def part_of(folder: str) -> str | None:
    """Return ``train``, ``val`` or ``test`` where a folder is called so, in any usual spelling."""
    match = _PART.fullmatch(folder.casefold())
    if match is None:
        return None
    kind = match["kind"]
    return "train" if kind.startswith("tr") else "test" if kind.startswith("te") else "val"
